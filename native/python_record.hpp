// Construction of Python records from C++.
#pragma once

#include <nanobind/nanobind.h>

#include "errors.hpp"

namespace lightir {

namespace nb = nanobind;

// Makes instances of a frozen dataclass from its fields in order. Skips the checks of the class: values must be valid.
class Record {
public:
    explicit Record(nb::handle type)
        : type_(nb::cast<nb::type_object>(type)), names_(nb::cast<nb::tuple>(type.attr("__match_args__"))) {}

    template <typename... Values>
    nb::object operator()(const Values&... values) const {
        if (sizeof...(values) != names_.size()) throw InvalidInput("a record's fields differ from those that the kernel sets");
        nb::object made = nb::steal(PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type_.ptr()), 0));
        if (!made.is_valid()) nb::raise_python_error();
        size_t i = 0;
        for (const nb::handle value : {nb::handle(values)...}) {
            if (PyObject_GenericSetAttr(made.ptr(), names_[i++].ptr(), value.ptr()) != 0) nb::raise_python_error();
        }
        return made;
    }

private:
    nb::type_object type_;
    nb::tuple names_;
};

}  // namespace lightir
