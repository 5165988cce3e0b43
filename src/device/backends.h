// The registry of backends: a row for each, and which of them a text of --device means. No torch: registry.h loads
// them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "device/footprint.h"

namespace tandem::device {

struct BackendRow {
  const char* name;            // the backend's part of --device: "cuda"
  const Footprint* footprint;  // what it states of itself
  const char* communicator;    // the library of --distributed-backend that moves its tensors
  const char* moves_tensors;   // what moves them where that flag is not given, for its help
  const char* resource;        // what a cluster's scheduler counts its devices as: "GPU"
  const char* device = "";     // one of its devices, for messages
  const char* remedy = "";     // what to do where its module is missing or does not load
  // Ways to compute, from the one that is tried first, where only the device itself can tell whether its rows are
  // exact: a run then asks the answers of `tandem device --check` (kept_check.h), which names the first way that is.
  // Empty where the backend's own tests tell.
  std::span<const char* const> rungs = {};
  const char* visible_devices = "";  // the variable that says which devices a process sees
  const char* why_unchecked = "";    // why several ranks on them need --unchecked-ranks; "": they do not

  // Whether it is a module that is loaded when a run asks for it, and whose devices have numbers. The CPU's operations
  // are in the program, and all ranks of a machine share the one CPU.
  bool is_module() const { return *device != 0; }
};

std::span<const BackendRow> backends();
// Null where no backend has that name.
const BackendRow* find_backend(std::string_view name);

// Names a device as users do: "cpu", "cuda", "cuda:1".
struct DeviceSpec {
  std::string backend = "cpu";
  int index = 0;
};

// The texts that --device accepts, as messages list them: "cpu, cuda, cuda:N, npu or npu:N".
std::string device_choices();
// The same for its help, which says what N counts: "cpu, cuda, cuda:N for GPU N, npu, or npu:N for NPU N".
std::string device_help();
// The names of the backends that are modules: "cuda, npu".
std::string module_names();
// UserError for any other text: it says what may be given.
DeviceSpec parse_device(const std::string& text);

const BackendRow& backend_of(const DeviceSpec& device);
const Footprint& footprint_of(const DeviceSpec& device);
// Does the same for a text of --device. Throws UserError as parse_device() does.
const Footprint& footprint_of(const std::string& text);

}  // namespace tandem::device
