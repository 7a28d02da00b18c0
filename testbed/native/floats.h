/* numpy arrays as arguments of native code: the part of Python's stable ABI that this takes, so
 * that no headers of Python are needed (https://docs.python.org/3/c-api/stable.html; Py_buffer is
 * part of it since 3.11). For libraries that are loaded with ctypes.PyDLL, which holds the
 * interpreter's lock.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct _object PyObject;

typedef struct {
	void *buf;
	PyObject *obj;
	ptrdiff_t len, itemsize;
	int readonly, ndim;
	char *format;
	ptrdiff_t *shape, *strides, *suboffsets;
	void *internal;
} Py_buffer;

enum { PyBUF_WRITABLE = 0x1, PyBUF_FORMAT = 0x4, PyBUF_C_CONTIGUOUS = 0x38 };

int PyObject_GetBuffer(PyObject *exporter, Py_buffer *view, int flags);
void PyBuffer_Release(Py_buffer *view);
void PyErr_Clear(void);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *state);

/* The values of an array. They stay as long as the caller holds a reference to it. */
struct floats {
	float *values;
	uint64_t count;
};

static bool is_same_shape(const Py_buffer *one, const Py_buffer *other)
{
	return one->ndim == other->ndim &&
	       !memcmp(one->shape, other->shape, one->ndim * sizeof(*one->shape));
}

static bool is_float32(const Py_buffer *view)
{
	return view->itemsize == 4 && view->format && !strcmp(view->format, "f") &&
	       !((uintptr_t)view->buf % 4);
}

static bool is_apart(const Py_buffer *one, const Py_buffer *other)
{
	const char *a = one->buf, *b = other->buf;

	return a == b || a + one->len <= b || b + other->len <= a;
}

/* The values of C-contiguous float32 arrays of the same shape: `out`, which is written, may be
 * `tensor`, and must not overlap it otherwise. False: they are not that; the caller finds out why.
 */
static bool floats_of(PyObject *tensor, PyObject *out, struct floats *x, struct floats *sums)
{
	Py_buffer from, to;
	bool fit;

	if (PyObject_GetBuffer(out, &to, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)) {
		PyErr_Clear();
		return false;
	}
	fit = is_float32(&to);
	*sums = *x = (struct floats){ to.buf, to.len / 4 };
	if (fit && tensor != out) {
		if (PyObject_GetBuffer(tensor, &from, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) {
			PyErr_Clear();
			fit = false;
		} else {
			fit = is_float32(&from) && is_same_shape(&from, &to) &&
			      is_apart(&from, &to);
			x->values = from.buf;
			PyBuffer_Release(&from);
		}
	}
	PyBuffer_Release(&to);
	return fit;
}
