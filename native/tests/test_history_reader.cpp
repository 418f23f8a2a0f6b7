// Tests of the reader of pickled histories: whole and in windows, truncated, and with random damage (for the
// sanitizers).
#include <algorithm>
#include <memory>
#include <random>
#include <string>

#include "pickle/history.hpp"
#include "tests/check.hpp"

using namespace forebay;

namespace {

std::string text(const std::string& word) {
  return "\x8c" + std::string(1, static_cast<char>(word.size())) + word + "\x94";
}

// A history as PyTorch pickles it: a dict with two entries, which share a list of frames and the id of a pool.
std::string seed() {
  const std::string frame =
      "}\x94(" + text("filename") + text("a.py") + text("line") + "K\x07" + text("name") + text("f") + "u";
  const std::string first = "}\x94(" + text("action") + text("alloc") + text("addr") + "M\x01\x10" + text("size") +
                            "K\x08" + text("frames") + "]\x94" + frame + "a" + text("pool_id") + "K\x01K\x02\x86\x94u";
  const std::string second = "}\x94(h\x07h\x08h\x09M\x01\x20h\x0aK\x10h\x0bh\x0cu";
  return std::string("\x80\x04}\x94(", 5) + text("segments") + "]\x94" + text("device_traces") + "]\x94]\x94(" + first +
         second + "ea" + text("extra") + "K\x01K\x02K\x03\x87\x94" + "u.";
}

HistoryStatus read(HistoryReader& reader, const std::string& data, size_t window) {
  size_t done = 0, end = 0;
  for (;;) {
    if (end == data.size()) return kHistoryMore;
    end = std::min(data.size(), end + window);
    const std::string part = data.substr(done, end - done);  // a copy, so that reads beyond it are found
    const HistoryStatus status = reader.read(part.data(), part.size(), data.size() - end);
    if (status != kHistoryMore) return status;
    done += reader.consumed();
  }
}

HistoryReader* fresh(uint64_t limit = 1 << 20) {
  auto* reader = new HistoryReader(7);
  reader->limit = limit;
  reader->name_action("alloc", 5, 1);
  return reader;
}

}  // namespace

TEST(entries_become_rows_in_any_window) {
  const std::string data = seed();
  for (size_t window = 1; window <= data.size(); ++window) {
    const std::unique_ptr<HistoryReader> reader(fresh());
    CHECK(read(*reader, data, window) == kHistoryDone);
    CHECK(reader->count() == 2);
    CHECK(reader->nodes().size() == 1 && reader->frames().size() == 1);
    CHECK(reader->entries()[0].stack == 1 && reader->entries()[0].nbytes == 8);
  }
}

TEST(every_truncation_is_salvaged_or_refused) {
  const std::string data = seed();
  size_t salvaged = 0;
  for (size_t size = 0; size < data.size(); ++size) {
    const std::unique_ptr<HistoryReader> reader(fresh());
    if (read(*reader, data.substr(0, size), 16) == kHistoryMore && reader->salvage()) ++salvaged;
  }
  CHECK(salvaged > data.size() / 2);
}

TEST(damaged_data_stay_within_their_bounds) {
  std::mt19937_64 random(1);
  const std::string whole = seed();
  for (int round = 0; round < 20000; ++round) {
    std::string data = whole;
    for (uint64_t change = 0; change <= random() % 4; ++change) {
      const size_t at = random() % data.size();
      switch (random() % 4) {
        case 0:
          data[at] = static_cast<char>(random());
          break;
        case 1:
          data.erase(at, random() % 8);
          break;
        case 2:
          data.insert(at, whole.substr(random() % whole.size(), random() % 32));
          break;
        default:
          data[at] = "(.ae]}tush\x94\x86"[random() % 12];
      }
      if (data.empty()) break;
    }
    const std::unique_ptr<HistoryReader> reader(fresh());
    if (read(*reader, data, 1 + random() % 64) == kHistoryMore) reader->salvage();
    CHECK(reader->count() < 1000);
  }
}

TEST(memory_is_counted_before_it_is_used) {
  const std::string data = std::string("\x80\x04](", 4) + std::string(1 << 20, ']');
  const std::unique_ptr<HistoryReader> reader(fresh(1 << 16));
  CHECK(read(*reader, data, 4096) == kHistoryTooLarge);
  CHECK(reader->used < (1 << 17));
}

TEST(equal_pairs_have_one_row_and_keys_do_not_collide) {
  PairTable table(42);
  for (uint64_t at = 0; at < 100000; ++at) CHECK(table.insert(at << 32, at << 48));
  for (uint64_t at = 0; at < 100000; at += 997) CHECK(table.find(at << 32, at << 48) == static_cast<int64_t>(at));
  CHECK(table.find(1, 1) == -1);
}

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
