#include "hardware.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>

namespace softcuda {

namespace {

std::string text_from(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? text : "";
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts{""};
  for (const char each : text) {
    if (each == ',')
      parts.emplace_back();
    else
      parts.back() += each;
  }
  return parts;
}

bool begins_with(const std::string& text, const std::string& prefix) { return text.rfind(prefix, 0) == 0; }

// Returns the entries' GPUs up to the first entry that is not valid; none if two entries are the same GPU.
std::vector<Gpu> selected(const std::vector<Gpu>& all, const std::string& text) {
  std::vector<Gpu> found;
  const std::vector<std::string> entries = split(text);
  const std::string prefix = entries[0].substr(0, 4);
  const bool by_uuid = prefix == "GPU-" || prefix == "MIG-";
  for (const std::string& entry : entries) {
    std::vector<Gpu> matches;
    if (by_uuid) {
      if (!begins_with(entry, prefix)) break;
      for (const Gpu& gpu : all) {
        if (begins_with(uuid_text(gpu), entry)) matches.push_back(gpu);
        if (!has_mig_mode(gpu.index)) continue;
        for (const Gpu& instance : instances(gpu)) {
          if (begins_with(uuid_text(instance), entry)) matches.push_back(instance);
        }
      }
    } else {
      const size_t start = entry.find_first_not_of(' ');
      if (start == std::string::npos || !std::isdigit(static_cast<unsigned char>(entry[start]))) break;
      const size_t number = std::strtoull(entry.c_str() + start, nullptr, 10);
      if (number < all.size()) matches.push_back(all[number]);
    }
    if (matches.size() != 1) break;
    for (const Gpu& earlier : found) {
      if (earlier.uuid == matches[0].uuid) return {};
    }
    found.push_back(matches[0]);
  }
  return found;
}

}  // namespace

size_t number_from(const char* variable, size_t otherwise) {
  const char* text = std::getenv(variable);
  return text && *text ? std::strtoull(text, nullptr, 0) : otherwise;
}

std::string uuid_text(const Gpu& gpu) {
  std::string text = gpu.instance < 0 ? "GPU-" : "MIG-";
  for (size_t at = 0; at < gpu.uuid.size(); ++at) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", gpu.uuid[at]);
    if (at == 4 || at == 6 || at == 8 || at == 10) text += '-';
    text += digits;
  }
  return text;
}

std::vector<Gpu> all_gpus() {
  std::vector<Gpu> all;
  for (size_t index = 0; index < number_from("SOFTCUDA_DEVICES", 2); ++index) {
    Gpu gpu{static_cast<int>(index), -1, "Software device", number_from("SOFTCUDA_MEMORY", size_t{8} << 30), {}};
    for (size_t at = 0; at < gpu.uuid.size(); ++at) gpu.uuid[at] = static_cast<unsigned char>(16 * index + at);
    all.push_back(gpu);
  }
  return all;
}

bool has_mig_mode(int index) {
  const auto listed = split(text_from("SOFTCUDA_MIG"));
  return std::find(listed.begin(), listed.end(), std::to_string(index)) != listed.end();
}

std::vector<Gpu> instances(Gpu gpu) {
  std::vector<Gpu> all;
  for (size_t number = 0; number < kMigInstances; ++number) {
    Gpu instance = gpu;
    instance.instance = static_cast<int>(number);
    instance.name += " MIG";
    instance.memory /= kMigInstances;
    instance.uuid[0] = static_cast<unsigned char>(0xa0 + number);
    all.push_back(instance);
  }
  return all;
}

// CUDA's order is that of SOFTCUDA_ORDER, a list of indices, as the fastest GPU is first; by PCI address if
// CUDA_DEVICE_ORDER says so. A process sees one instance of a GPU with MIG mode, and of one such GPU only.
std::vector<Gpu> visible_to_cuda() {
  std::vector<Gpu> ordered = all_gpus();
  const std::string order = text_from("SOFTCUDA_ORDER");
  if (!order.empty() && text_from("CUDA_DEVICE_ORDER") != "PCI_BUS_ID") {
    const std::vector<Gpu> by_address = ordered;
    ordered.clear();
    for (const std::string& index : split(order))
      ordered.push_back(by_address.at(std::strtoull(index.c_str(), nullptr, 10)));
  }
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<Gpu> visible = text ? selected(ordered, text) : ordered;
  for (Gpu& gpu : visible) {
    if (gpu.instance < 0 && has_mig_mode(gpu.index)) gpu = instances(gpu)[0];
  }
  for (const Gpu& gpu : visible) {
    if (gpu.instance >= 0) return {gpu};
  }
  return visible;
}

std::string file_title(const Gpu& gpu) {
  const std::string machine = text_from("SOFTCUDA_MACHINE");
  return "softcuda:" + (machine.empty() ? std::to_string(getpid()) : machine) + ":" + uuid_text(gpu) + ":";
}

}  // namespace softcuda
