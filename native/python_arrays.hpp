// Conversions shared by the binding files: borrow and check numpy arrays, turn results into numpy arrays.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

// The one file that defines this name imports numpy's functions for all files.
#ifndef LIGHTIR_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#define PY_ARRAY_UNIQUE_SYMBOL lightir_numpy_functions
#define NPY_NO_DEPRECATED_API NPY_1_25_API_VERSION
#include <numpy/arrayobject.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "dense.hpp"
#include "errors.hpp"
#include "top_k.hpp"

namespace lightir {

namespace nb = nanobind;

template <typename T>
constexpr const char* dtype_name() {
    if constexpr (std::is_same_v<T, int64_t>) return "int64";
    else if constexpr (std::is_same_v<T, uint32_t>) return "uint32";
    else if constexpr (std::is_same_v<T, uint16_t>) return "uint16";
    else if constexpr (std::is_same_v<T, uint8_t>) return "uint8";
    else if constexpr (std::is_same_v<T, double>) return "float64";
    else return "float32";
}

// A numpy array, borrowed for the lifetime of this object.
class Array {
public:
    Array(nb::handle object, const char* name, int ndim) : name_(name) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
            PyErr_Clear();
            throw InvalidInput(std::string(name) + " must be a C-contiguous numpy array");
        }
        if (view_.ndim != ndim) {
            const std::string got = std::to_string(view_.ndim);
            PyBuffer_Release(&view_);
            throw InvalidInput(std::string(name) + " must have " + std::to_string(ndim) + " dimension(s), not " + got);
        }
        if (view_.len > 0 && reinterpret_cast<uintptr_t>(view_.buf) % static_cast<uintptr_t>(view_.itemsize) != 0) {
            PyBuffer_Release(&view_);
            throw InvalidInput(std::string(name) + " is not aligned in memory: copy it");
        }
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() { PyBuffer_Release(&view_); }

    size_t size(int axis = 0) const { return static_cast<size_t>(view_.shape[axis]); }
    const void* data() const { return view_.buf; }

    template <typename T>
    bool is() const {
        return std::string(dtype_name<T>()) == dtype();
    }

    template <typename T>
    Span<T> span() const {
        if (!is<T>()) wrong_dtype(dtype_name<T>());
        return {static_cast<const T*>(view_.buf), static_cast<size_t>(view_.len / view_.itemsize)};
    }

    std::string dtype() const {
        const std::string format = view_.format == nullptr ? "B" : view_.format;
        if (format.size() != 1) return "format '" + format + "'";
        switch (format[0]) {
            case 'e': return "float16";
            case 'f': return "float32";
            case 'd': return "float64";
            case '?': return "bool";
            case 'b': case 'h': case 'i': case 'l': case 'q': return "int" + std::to_string(8 * view_.itemsize);
            case 'B': case 'H': case 'I': case 'L': case 'Q': return "uint" + std::to_string(8 * view_.itemsize);
            default: return "format '" + format + "'";
        }
    }

    [[noreturn]] void wrong_dtype(const std::string& expected) const {
        throw InvalidInput(std::string(name_) + " must be " + expected + ", not " + dtype());
    }

private:
    const char* name_;
    Py_buffer view_;
};

inline void same_length(const char* what, size_t a, size_t b) {
    if (a != b) {
        throw InvalidInput(std::string(what) + " differ in length: " + std::to_string(a) + " and " + std::to_string(b));
    }
}

inline void check_indptr(Span<int64_t> indptr, size_t total, const char* name) {
    bool good = indptr.size > 0 && indptr[0] == 0 && indptr[indptr.size - 1] == static_cast<int64_t>(total);
    for (size_t i = 1; good && i < indptr.size; ++i) good = indptr[i] >= indptr[i - 1];
    if (!good) {
        throw InvalidInput(std::string(name) + " must start at 0, never fall and end at " + std::to_string(total));
    }
}

// A matrix with its optional row scales.
class Rows {
public:
    // bfloat16: whether uint16 rows are read as bfloat16, for which numpy has no dtype; otherwise uint16 is refused.
    Rows(nb::handle rows, nb::handle scales, const char* name, bool bfloat16 = false) : rows_(rows, name, 2) {
        const std::string dtype = rows_.dtype();
        if (dtype != "float16" && dtype != "float32" && dtype != "int8" && !(bfloat16 && dtype == "uint16")) {
            rows_.wrong_dtype(bfloat16 ? "float16, float32, int8 or uint16 (bfloat16)" : "float16, float32 or int8");
        }
        matrix.element = dtype == "float16"   ? Element::float16
                         : dtype == "float32" ? Element::float32
                         : dtype == "int8"    ? Element::int8
                                              : Element::bfloat16;
        matrix.data = rows_.data();
        matrix.n_rows = rows_.size(0);
        matrix.width = rows_.size(1);
        if (matrix.n_rows > 0xffffffffu) throw InvalidInput("more than 4,294,967,295 rows");
        if (scales.is_none() == (matrix.element == Element::int8)) {
            throw InvalidInput(std::string(name) + ": int8 rows need scales, other rows have none");
        }
        if (scales.is_none()) return;
        scales_.emplace_back(new Array(scales, "scales", 1));
        const Span<float> values = scales_[0]->span<float>();
        same_length("rows and scales", matrix.n_rows, values.size);
        matrix.scales = values.data;
    }
    Matrix matrix;

    void check_dim(size_t dim) const {
        if (dim > matrix.width) {
            throw InvalidInput("rows are " + std::to_string(matrix.width) + " wide, which is less than the " +
                               std::to_string(dim) + " columns asked for");
        }
    }

private:
    Array rows_;
    std::vector<std::unique_ptr<Array>> scales_;
};

template <typename T>
constexpr int type_number() {
    if constexpr (std::is_same_v<T, int64_t>) return NPY_INT64;
    else if constexpr (std::is_same_v<T, uint32_t>) return NPY_UINT32;
    else if constexpr (std::is_same_v<T, uint16_t>) return NPY_UINT16;
    else if constexpr (std::is_same_v<T, uint8_t>) return NPY_UINT8;
    else if constexpr (std::is_same_v<T, double>) return NPY_FLOAT64;
    else {
        static_assert(std::is_same_v<T, float>);
        return NPY_FLOAT32;
    }
}

inline void* array_data(const nb::object& array) { return PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())); }

// Returns a new, uninitialized array.
template <typename T, size_t n_dims>
nb::object new_array(const std::array<size_t, n_dims>& shape) {
    npy_intp dims[n_dims];
    for (size_t i = 0; i < n_dims; ++i) dims[i] = static_cast<npy_intp>(shape[i]);
    nb::object array = nb::steal(PyArray_SimpleNew(static_cast<int>(n_dims), dims, type_number<T>()));
    if (!array.is_valid()) nb::raise_python_error();
    return array;
}

// Uses numpy's C API, since nanobind's conversion through DLPack takes ten times as long. Small vectors are copied; the
// memory of large ones is handed over.
template <typename T>
nb::object to_numpy(std::vector<T> values) {
    constexpr size_t few_bytes = 4096;
    if (values.size() * sizeof(T) <= few_bytes) {
        nb::object array = new_array<T, 1>({values.size()});
        if (!values.empty()) std::memcpy(array_data(array), values.data(), values.size() * sizeof(T));
        return array;
    }
    auto* kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    npy_intp dims[1] = {static_cast<npy_intp>(kept->size())};
    nb::object array = nb::steal(PyArray_SimpleNewFromData(1, dims, type_number<T>(), kept->data()));
    if (!array.is_valid() ||
        PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array.ptr()), owner.release().ptr()) != 0) {
        nb::raise_python_error();
    }
    return array;
}

// An optional bitmap over n documents.
class Allowed {
public:
    Allowed(nb::handle object, size_t n) {
        if (object.is_none()) return;
        array_.emplace_back(new Array(object, "allowed", 1));
        const Span<uint8_t> bits = array_[0]->span<uint8_t>();
        if (bits.size != (n + 7) / 8) {
            throw InvalidInput("allowed must hold one bit per document: " + std::to_string((n + 7) / 8) + " bytes for " +
                               std::to_string(n) + " documents, not " + std::to_string(bits.size));
        }
        bitmap = Bitmap{bits.data};
    }
    Bitmap bitmap;

private:
    std::vector<std::unique_ptr<Array>> array_;
};

// Concatenated lists of hits: (indptr, doc_ords, scores).
inline nb::tuple to_numpy(const std::vector<std::vector<Hit>>& lists) {
    std::vector<int64_t> indptr{0};
    std::vector<uint32_t> doc_ords;
    std::vector<float> scores;
    for (const std::vector<Hit>& hits : lists) {
        for (const Hit& hit : hits) {
            doc_ords.push_back(hit.doc_ord);
            scores.push_back(hit.score);
        }
        indptr.push_back(static_cast<int64_t>(doc_ords.size()));
    }
    return nb::make_tuple(to_numpy(std::move(indptr)), to_numpy(std::move(doc_ords)), to_numpy(std::move(scores)));
}

// The sketches of a matrix's rows, each None or the arrays of kernel.Copies and kernel.Codes.
class SketchesOf {
public:
    SketchesOf(nb::handle copies, nb::handle codes, const Matrix& matrix) {
        if (!copies.is_none()) take_copies(nb::cast<nb::tuple>(copies), matrix);
        if (!codes.is_none()) take_codes(nb::cast<nb::tuple>(codes), matrix);
    }
    Sketches sketches;

private:
    void take_copies(const nb::tuple& parts, const Matrix& matrix) {
        rows_.emplace_back(new Rows(parts[0], parts[1], "copies"));
        Copies& copies = sketches.copies;
        copies.rows = rows_[0]->matrix;
        if (copies.rows.element != Element::int8) throw InvalidInput("copies must be int8");
        same_length("rows and copies", matrix.n_rows, copies.rows.n_rows);
        same_length("columns of rows and copies", matrix.width, copies.rows.width);
        copies.errors = numbers<float>(parts[2], "errors", matrix.n_rows);
    }

    void take_codes(const nb::tuple& parts, const Matrix& matrix) {
        arrays_.emplace_back(new Array(parts[0], "codes", 3));
        const Array& bytes = *arrays_.back();
        Codes& codes = sketches.codes;
        codes.data = bytes.span<uint8_t>().data;
        codes.n_columns = bytes.size(1);
        same_length("blocks of rows and of codes", (matrix.n_rows + coded_block - 1) / coded_block, bytes.size(0));
        same_length("columns of rows and codes", (matrix.width + codes_a_byte - 1) / codes_a_byte, bytes.size(1));
        same_length("block and rows of codes", coded_block, bytes.size(2));
        codes.scales = numbers<uint16_t>(parts[1], "scales of codes", matrix.n_rows);
        codes.errors = numbers<uint16_t>(parts[2], "errors of codes", matrix.n_rows);
        codes.center = numbers<float>(parts[3], "center", matrix.width);
    }

    template <typename Number>
    const Number* numbers(nb::handle given, const char* name, size_t n) {
        arrays_.emplace_back(new Array(given, name, 1));
        const Span<Number> values = arrays_.back()->span<Number>();
        same_length(name, n, values.size);
        return values.data;
    }

    std::vector<std::unique_ptr<Rows>> rows_;
    std::vector<std::unique_ptr<Array>> arrays_;
};

}  // namespace lightir
