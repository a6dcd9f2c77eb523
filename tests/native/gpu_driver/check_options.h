// The options of the self-check on the command line.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace vbgemm::driver {

struct CheckOptions {
  bool small = false;   // few and tiny problems, for compute-sanitizer
  bool exact = false;   // buffers without margins, for tools that see every access beyond a buffer
  bool races = false;   // leaves out intentional races, for tools that find races in global memory
  bool replays = true;  // runs graphs and repeated runs
  uint64_t seed = 0;
  std::vector<std::string> kinds;  // names of arithmetics; if empty, all that have kernels

  // Parses the option words[i] and moves `i` past it; returns false if the option does not belong to the self-check.
  bool take(const std::vector<std::string>& words, size_t& i) {
    const std::string& option = words[i];
    if (option == "--small")
      small = true;
    else if (option == "--exact")
      exact = true;
    else if (option == "--races")
      races = true;
    else if (option == "--no-replays")
      replays = false;
    else if (option == "--seed" && i + 1 < words.size())
      seed = std::stoull(words[++i]);
    else if (option == "--kinds")
      while (i + 1 < words.size() && words[i + 1][0] != '-') kinds.push_back(words[++i]);
    else
      return false;
    ++i;
    return true;
  }
};

}  // namespace vbgemm::driver
