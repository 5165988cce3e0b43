#include "device/npu/python.h"

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>

#include "base/check.h"

namespace tandem::device {
namespace {

struct Release {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
using Object = std::unique_ptr<PyObject, Release>;

std::string text_of(PyObject* object) {
  const Object text(object == nullptr ? nullptr : PyObject_Str(object));
  const char* const words = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  PyErr_Clear();
  return words == nullptr ? "" : words;
}

// Returns a text of several lines as one, cut where it is longer than a line of a terminal's window.
std::string as_line(const std::string& text) {
  constexpr size_t kLongest = 400;
  std::string line;
  for (const char c : text) {
    if (c != '\n') line += c;
    if (c == '\n' && !line.empty() && line.back() != ' ') line += ' ';
  }
  return line.size() > kLongest ? line.substr(0, kLongest) + "..." : line;
}

// Takes the exception that is set. Where others caused it, the first one says what is wrong: a library that is missing.
std::string take_exception() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const Object owned_type(type), owned_trace(trace);
  Object exception(value);
  while (exception) {
    PyObject* const cause = PyException_GetCause(exception.get());
    if (cause == nullptr) break;
    exception.reset(cause);
  }
  const std::string kind = exception ? Py_TYPE(exception.get())->tp_name : "error";
  return as_line(fmt::format("{}: {}", kind, text_of(exception.get())));
}

void check_status(const PyStatus& status, const std::string& executable) {
  if (PyStatus_Exception(status) == 0) return;
  throw EnvironmentError(fmt::format("{}: Python does not start: {}; build again with `make npu PYTHON=python3`",
                                     executable, status.err_msg == nullptr ? "no words" : status.err_msg));
}

void start(const PythonPlace& place) {
  // Modules of Python are libraries that look for its functions among those that the process shares.
  TANDEM_ENV_CHECK(dlopen(place.library.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr,
                   fmt::format("{}; build again with `make npu PYTHON=python3`", dlerror()));
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  config.install_signal_handlers = 0;
  config.use_environment = 0;
  config.user_site_directory = 0;
  config.parse_argv = 0;
  PyStatus status = PyConfig_SetBytesString(&config, &config.program_name, place.executable.c_str());
  if (PyStatus_Exception(status) == 0)
    status = PyConfig_SetBytesString(&config, &config.executable, place.executable.c_str());
  if (PyStatus_Exception(status) == 0) status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  check_status(status, place.executable);
  PyEval_SaveThread();  // any thread may take it from now on
}

// Holds the interpreter on this thread.
class Holding {
 public:
  Holding() : state_(PyGILState_Ensure()) {}
  ~Holding() { PyGILState_Release(state_); }
  Holding(const Holding&) = delete;
  Holding& operator=(const Holding&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace

std::map<std::string, std::string> run_python(const PythonPlace& place, const std::string& script,
                                              const std::map<std::string, std::string>& strings) {
  if (Py_IsInitialized() == 0) start(place);
  const Holding holding;
  PyObject* const names = PyDict_New();  // never released: what the script made stays
  for (const auto& [name, value] : strings) {
    const Object text(PyUnicode_FromString(value.c_str()));
    PyDict_SetItemString(names, name.c_str(), text.get());
  }
  PyDict_SetItemString(names, "__builtins__", PyEval_GetBuiltins());
  const Object result(PyRun_String(script.c_str(), Py_file_input, names, names));
  if (!result) throw EnvironmentError(take_exception());
  std::map<std::string, std::string> texts;
  PyObject *name = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(names, &at, &name, &value) != 0;) {
    if (PyUnicode_Check(name) != 0 && PyUnicode_Check(value) != 0) texts[text_of(name)] = text_of(value);
  }
  return texts;
}

}  // namespace tandem::device
