"""Functions of the library in place of cuDNN that have to answer something, in C: see stub_libraries.py.

Descriptors of tensors and of recurrent layers keep what PyTorch asks for later. The weights of recurrent layers lie as
PyTorch requires: for each layer and direction the matrices of the gates for the input, then those for the state, and
after all matrices the biases in the same order. Heuristics find one engine; every workspace has 0 bytes.
"""

from __future__ import annotations

DEFINITIONS = """
#include <stdint.h>
typedef struct { int type, dims, shape[8], strides[8]; } tensor;
typedef struct { int cell, biases, directions, type, input, hidden, projected, layers; } recurrent;
static size_t width(int type) { return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2; }
static int gates(const recurrent* r) { return r->cell == CUDNN_LSTM ? 4 : r->cell == CUDNN_GRU ? 3 : 1; }
static int outputs(const recurrent* r) { return r->projected ? r->projected : r->hidden; }
static int is_projected(const recurrent* r) { return r->projected && r->projected != r->hidden; }
static int biases(const recurrent* r) {
    return r->biases == CUDNN_RNN_NO_BIAS ? 0 : r->biases == CUDNN_RNN_DOUBLE_BIAS ? 2 : 1;
}
static int columns(const recurrent* r, int pseudo) {
    return pseudo < r->directions ? r->input : outputs(r) * r->directions;
}
static size_t matrices(const recurrent* r, int pseudo) {
    return (size_t)gates(r) * r->hidden * (columns(r, pseudo) + outputs(r))
        + (is_projected(r) ? (size_t)r->projected * r->hidden : 0);
}
static size_t all_matrices(const recurrent* r, int layers) {
    size_t total = 0;
    for (int each = 0; each < layers; each++) total += matrices(r, each);
    return total;
}
static void describe(tensor* t, int type, int rows, int width) {
    t->type = type; t->dims = 3; t->shape[0] = 1; t->shape[1] = rows; t->shape[2] = width;
    t->strides[0] = rows * width; t->strides[1] = width; t->strides[2] = 1;
}
"""

# Parameters and statements of functions.
BODIES = {
    "cudnnGetVersion": ("void", "return CUDNN_VERSION;"),
    "cudnnGetCudartVersion": ("void", "return 13000;"),
    "cudnnGetProperty": (
        "int part, int* value",
        "*value = part == 0 ? CUDNN_MAJOR : part == 1 ? CUDNN_MINOR : CUDNN_PATCHLEVEL; return 0;",
    ),
    "cudnnGetErrorString": ("int status", 'return (long)"a function that does nothing";'),
    "cudnnGetLastErrorString": ("char* text, size_t size", "if (size) *text = 0; return 0;"),
    "cudnnGetStream": ("void* handle, void** stream", "*stream = 0; return 0;"),
    "cudnnSetTensorNdDescriptor": (
        "tensor* t, int type, int dims, const int* shape, const int* strides",
        """t->type = type; t->dims = dims;
        for (int at = 0; at < dims; at++) { t->shape[at] = shape[at]; t->strides[at] = strides[at]; }
        return 0;""",
    ),
    "cudnnGetTensorNdDescriptor": (
        "const tensor* t, int requested, int* type, int* dims, int* shape, int* strides",
        """*type = t->type; *dims = t->dims;
        for (int at = 0; at < requested && at < t->dims; at++) {
            shape[at] = t->shape[at]; strides[at] = t->strides[at];
        }
        return 0;""",
    ),
    "cudnnSetRNNDescriptor_v8": (
        """recurrent* r, int algorithm, int cell, int biases, int directions, int mode, int type, int precision,
        int math, int input, int hidden, int projected, int layers, void* dropout, unsigned flags""",
        """r->cell = cell; r->biases = biases; r->directions = directions == CUDNN_BIDIRECTIONAL ? 2 : 1;
        r->type = type; r->input = input; r->hidden = hidden; r->projected = projected; r->layers = layers;
        return 0;""",
    ),
    "cudnnGetRNNWeightSpaceSize": (
        "void* handle, recurrent* r, size_t* size",
        """int layers = r->layers * r->directions;
        *size = (all_matrices(r, layers) + (size_t)layers * biases(r) * gates(r) * r->hidden) * width(r->type);
        return 0;""",
    ),
    "cudnnGetRNNWeightParams": (
        """void* handle, recurrent* r, int pseudo, size_t size, char* weights, int number, tensor* matrix,
        char** matrix_at, tensor* bias, char** bias_at""",
        """int count = gates(r), is_state = number >= count, is_last = number == 2 * count;
        size_t at = all_matrices(r, pseudo), of_input = (size_t)count * r->hidden * columns(r, pseudo);
        if (is_last) at += matrices(r, pseudo) - (size_t)r->projected * r->hidden;
        else if (is_state) at += of_input + (size_t)(number - count) * r->hidden * outputs(r);
        else at += (size_t)number * r->hidden * columns(r, pseudo);
        tensor unused;
        char* nowhere;
        if (!matrix_at) matrix_at = &nowhere;
        if (!bias_at) bias_at = &nowhere;
        if (!matrix) matrix = &unused;
        if (!bias) bias = &unused;
        *matrix_at = *bias_at = 0; matrix->dims = bias->dims = 0; matrix->type = bias->type = r->type;
        if (is_last && !is_projected(r)) return 0;
        *matrix_at = weights + at * width(r->type);
        if (is_last) describe(matrix, r->type, r->projected, r->hidden);
        else describe(matrix, r->type, r->hidden, is_state ? outputs(r) : columns(r, pseudo));
        if (is_last || biases(r) <= is_state) return 0;
        at = all_matrices(r, r->layers * r->directions)
            + ((size_t)pseudo * biases(r) * count + number) * r->hidden;
        *bias_at = weights + at * width(r->type);
        describe(bias, r->type, r->hidden, 1);
        return 0;""",
    ),
    "cudnnBackendCreateDescriptor": ("int type, void** made", "*made = calloc(1, 512); return 0;"),
    # Descriptors that are returned have been created by the caller. There is one engine, without notes.
    "cudnnBackendGetAttribute": (
        "void* descriptor, int name, int type, int64_t requested, int64_t* count, void* found",
        """int is_note = type == CUDNN_TYPE_NUMERICAL_NOTE || type == CUDNN_TYPE_BEHAVIOR_NOTE;
        if (count) *count = !is_note;
        if (found && requested && !is_note && type != CUDNN_TYPE_BACKEND_DESCRIPTOR)
            memset(found, 0, type == CUDNN_TYPE_CHAR || type == CUDNN_TYPE_BOOLEAN ? 1
                : type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_DOUBLE || type == CUDNN_TYPE_VOID_PTR ? 8 : 4);
        return 0;""",
    ),
}  # fmt: skip
