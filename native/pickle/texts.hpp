// Texts of a pickled history, each stored once, and the keys and actions among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace forebay {

enum Key : uint8_t {
  kKeyOther,
  kKeyAction,
  kKeyAddress,
  kKeySize,
  kKeyStream,
  kKeyTime,
  kKeyFrames,
  kKeyPool,
  kKeyFree,
  kKeyContext,
  kKeyUser,
  kKeyFile,
  kKeyName,
  kKeyLine,
  kKeyInternal,
  kKeyForward,
  kKeyDetail,  // any key that begins with "fx_": a detail of a frame in generated code
};

inline Key key_of(std::string_view text) {
  static constexpr std::pair<std::string_view, Key> kKeys[] = {
      {"action", kKeyAction}, {"addr", kKeyAddress},           {"size", kKeySize},
      {"stream", kKeyStream}, {"time_us", kKeyTime},           {"frames", kKeyFrames},
      {"pool_id", kKeyPool},  {"device_free", kKeyFree},       {"compile_context", kKeyContext},
      {"filename", kKeyFile}, {"user_metadata", kKeyUser},     {"name", kKeyName},
      {"line", kKeyLine},     {"forward_frames", kKeyForward}, {"internal_metadata", kKeyInternal},
  };
  for (const auto& [word, key] : kKeys) {
    if (word == text) return key;
  }
  return text.substr(0, 3) == "fx_" ? kKeyDetail : kKeyOther;
}

// Most texts repeat a recent one; the others are found in a tree, whose time no file can make worse.
class TextTable {
 public:
  static constexpr uint32_t kUnknownAction = 0;

  static size_t cost(std::string_view text) { return 160 + text.size(); }  // bytes of memory, an upper bound

  void name_action(std::string_view text, uint32_t number) { actions_.emplace(std::string(text), number); }

  size_t size() const { return texts_.size(); }
  const std::string& operator[](size_t row) const { return *texts_[row]; }
  Key key(size_t row) const { return keys_[row]; }
  uint32_t action(size_t row) const { return action_of_[row]; }

  // Returns the row of a text, or -1.
  int64_t find(std::string_view text) {
    uint32_t& recent = cache_[slot(text)];
    if (recent != 0 && *texts_[recent - 1] == text) return recent - 1;
    const auto found = rows_.find(text);
    if (found == rows_.end()) return -1;
    recent = found->second + 1;
    return found->second;
  }

  int64_t insert(std::string_view text) {
    const auto row = static_cast<uint32_t>(texts_.size());
    texts_.push_back(&rows_.emplace(std::string(text), row).first->first);
    keys_.push_back(key_of(text));
    const auto action = actions_.find(text);
    action_of_.push_back(action == actions_.end() ? kUnknownAction : action->second);
    cache_[slot(text)] = row + 1;
    return row;
  }

 private:
  static constexpr size_t kCacheSlots = 1 << 10, kCachedText = 64;

  static size_t slot(std::string_view text) {
    size_t mixed = text.size();
    for (const char letter : text.substr(0, kCachedText)) mixed = mixed * 31 + static_cast<uint8_t>(letter);
    return mixed % kCacheSlots;
  }

  std::map<std::string, uint32_t, std::less<>> rows_, actions_;
  std::vector<const std::string*> texts_;
  std::vector<Key> keys_;
  std::vector<uint32_t> action_of_;
  uint32_t cache_[kCacheSlots] = {};  // rows, from 1
};

}  // namespace forebay
