/* Calls on many sockets at once, without the interpreter's lock in between.
 *
 * The Python module `batch_io_twin` is the same interface, and says what each function promises.
 * Nothing here knows HTTP: what bytes mean, and how many may come, is decided in Python.
 */

#define PY_SSIZE_T_CLEAN
/* Only what every Python from 3.11 on has, so that one wheel serves them all. */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <errno.h>
#include <limits.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* Raised with each change of what a function takes or returns, together with that of the twin. */
#define INTERFACE 2
/* Room on the stack for what one call receives: memory is touched only as far as bytes come. */
#define ROOM_BYTES (256 * 1024)
#define RECEIVE_BYTES (64 * 1024)
#define MOST_EVENTS 256

/* One ready socket, with a reference to its owner. */
typedef struct {
    PyObject *owner;
    int descriptor;
    unsigned int events;
    ssize_t received; /* -1: nothing was, or was to be, received */
    char *data;
} Arrival;

static ssize_t
receive(int descriptor, char *room, size_t size)
{
    ssize_t received;
    do {
        received = recv(descriptor, room, size, MSG_DONTWAIT);
    } while (received < 0 && errno == EINTR);
    if (received < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
        return 0; /* a broken connection has ended */
    }
    return received;
}

static void
receive_all(Arrival *arrivals, int count, char *room)
{
    char *end = room + ROOM_BYTES;
    for (int i = 0; i < count; i++) {
        Arrival *arrival = &arrivals[i];
        if (arrival->received < 0 || end - room < RECEIVE_BYTES) {
            arrival->received = -1;
            continue;
        }
        arrival->data = room;
        arrival->received = receive(arrival->descriptor, room, RECEIVE_BYTES);
        if (arrival->received > 0) {
            room += arrival->received;
        }
    }
}

/* Add the arrival at a socket, if it is someone's. Returns -1 with an exception. */
static int
add_arrival(const struct epoll_event *event, PyObject *watched, PyObject *paused,
            Arrival *arrivals, int *count)
{
    PyObject *descriptor = PyLong_FromLong(event->data.fd);
    if (descriptor == NULL) {
        return -1;
    }
    PyObject *owner = PyDict_GetItemWithError(watched, descriptor);
    Py_DECREF(descriptor);
    if (owner == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    Arrival *arrival = &arrivals[(*count)++];
    *arrival = (Arrival){Py_NewRef(owner), event->data.fd, event->events, 0, NULL};
    int is_paused = PySet_Contains(paused, owner);
    arrival->received = is_paused ? -1 : 0;
    return is_paused < 0 ? -1 : 0;
}

static PyObject *
as_tuple(const Arrival *arrival)
{
    PyObject *events = PyLong_FromUnsignedLong(arrival->events);
    PyObject *data = arrival->received < 0
        ? Py_NewRef(Py_None)
        : PyBytes_FromStringAndSize(arrival->data, arrival->received);
    PyObject *tuple = events == NULL || data == NULL
        ? NULL
        : PyTuple_Pack(3, arrival->owner, events, data);
    Py_XDECREF(events);
    Py_XDECREF(data);
    return tuple;
}

static PyObject *
receive_ready(PyObject *module, PyObject *args)
{
    PyObject *epoll, *watched, *paused;
    int most;
    if (!PyArg_ParseTuple(args, "OO!O!i", &epoll, &PyDict_Type, &watched, &PySet_Type, &paused,
                          &most)) {
        return NULL;
    }
    int descriptor = PyObject_AsFileDescriptor(epoll);
    if (descriptor < 0) {
        return NULL;
    }
    if (most < 1 || most > MOST_EVENTS) {
        return PyErr_Format(PyExc_ValueError, "at most %d sockets at once", MOST_EVENTS);
    }
    struct epoll_event events[MOST_EVENTS];
    int ready = epoll_wait(descriptor, events, most, 0);
    if (ready < 0) {
        return errno == EINTR ? PyList_New(0) : PyErr_SetFromErrno(PyExc_OSError);
    }
    Arrival arrivals[MOST_EVENTS];
    int count = 0;
    PyObject *list = NULL;
    for (int i = 0; i < ready; i++) {
        if (add_arrival(&events[i], watched, paused, arrivals, &count) < 0) {
            goto done;
        }
    }
    char room[ROOM_BYTES];
    Py_BEGIN_ALLOW_THREADS
    receive_all(arrivals, count, room);
    Py_END_ALLOW_THREADS
    list = PyList_New(count);
    for (int i = 0; i < count && list != NULL; i++) {
        PyObject *tuple = as_tuple(&arrivals[i]);
        if (tuple == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SetItem(list, i, tuple);
        }
    }
done:
    for (int i = 0; i < count; i++) {
        Py_DECREF(arrivals[i].owner);
    }
    return list;
}

/* Bytes for one socket, and how many of them it took. */
typedef struct {
    int descriptor;
    PyObject *data;
    char *bytes;
    Py_ssize_t size;
    ssize_t taken;
} Sending;

static void
send_all(Sending *sendings, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        Sending *one = &sendings[i];
        do {
            one->taken = send(one->descriptor, one->bytes, (size_t)one->size,
                              MSG_DONTWAIT | MSG_NOSIGNAL);
        } while (one->taken < 0 && errno == EINTR);
        if (one->taken < 0) {
            one->taken = 0;
        }
    }
}

/* Note what to send, with a reference to each piece. Returns how many are noted: fewer than
 * `count` with an exception. */
static Py_ssize_t
note_sendings(PyObject *descriptors, PyObject *pieces, Sending *sendings, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *number = PyList_GetItem(descriptors, i);
        long descriptor = number == NULL ? -1 : PyLong_AsLong(number);
        if (descriptor == -1 && PyErr_Occurred()) {
            return i;
        }
        if (descriptor < INT_MIN || descriptor > INT_MAX) {
            PyErr_SetString(PyExc_OverflowError, "a descriptor is an int");
            return i;
        }
        PyObject *data = PyList_GetItem(pieces, i);
        if (data == NULL) {
            return i;
        }
        if (!PyBytes_CheckExact(data)) {
            PyErr_SetString(PyExc_TypeError, "pieces are bytes");
            return i;
        }
        sendings[i] = (Sending){
            (int)descriptor, Py_NewRef(data), PyBytes_AsString(data), PyBytes_Size(data), 0,
        };
    }
    return count;
}

static PyObject *
shortfalls(const Sending *sendings, Py_ssize_t count)
{
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; i < count && list != NULL; i++) {
        if (sendings[i].taken == sendings[i].size) {
            continue;
        }
        PyObject *pair = Py_BuildValue("(nn)", i, (Py_ssize_t)sendings[i].taken);
        if (pair == NULL || PyList_Append(list, pair) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(pair);
    }
    return list;
}

static PyObject *
send_each(PyObject *module, PyObject *args)
{
    PyObject *descriptors, *pieces;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &descriptors, &PyList_Type, &pieces)) {
        return NULL;
    }
    Py_ssize_t count = PyList_Size(descriptors);
    if (count != PyList_Size(pieces)) {
        PyErr_SetString(PyExc_ValueError, "a piece for each descriptor");
        return NULL;
    }
    Sending *sendings = PyMem_New(Sending, count);
    if (sendings == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *list = NULL;
    Py_ssize_t noted = note_sendings(descriptors, pieces, sendings, count);
    if (noted == count) {
        Py_BEGIN_ALLOW_THREADS
        send_all(sendings, count);
        Py_END_ALLOW_THREADS
        list = shortfalls(sendings, count);
    }
    for (Py_ssize_t i = 0; i < noted; i++) {
        Py_DECREF(sendings[i].data);
    }
    PyMem_Free(sendings);
    return list;
}

static PyMethodDef methods[] = {
    {"receive_ready", receive_ready, METH_VARARGS, "See batch_io_twin.receive_ready."},
    {"send_each", send_each, METH_VARARGS, "See batch_io_twin.send_each."},
    {NULL, NULL, 0, NULL},
};

static int
add_interface(PyObject *module)
{
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_interface},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_batch_io", "See batch_io_twin.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__batch_io(void)
{
    return PyModuleDef_Init(&definition);
}
