// Texts from Python.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>
#include <vector>

namespace lightir {

namespace nb = nanobind;

// The texts of a sequence as UTF-8, borrowed for the lifetime of this object; data is null for an item that is not valid
// text.
class Texts {
public:
    explicit Texts(nb::handle texts) : kept_(nb::steal<nb::tuple>(PySequence_Tuple(texts.ptr()))) {
        if (!kept_.is_valid()) nb::raise_python_error();
        views.reserve(kept_.size());
        for (const nb::handle text : kept_) {
            Py_ssize_t size = 0;
            const char* data = PyUnicode_Check(text.ptr()) ? PyUnicode_AsUTF8AndSize(text.ptr(), &size) : nullptr;
            if (data == nullptr) PyErr_Clear();
            views.emplace_back(data, static_cast<size_t>(size));
        }
    }
    const nb::tuple& kept() const { return kept_; }
    std::vector<std::string_view> views;

private:
    nb::tuple kept_;
};

}  // namespace lightir
