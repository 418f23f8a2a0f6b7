// A stand-in for NVRTC: compiles CUDA C++ with the host's compiler to a shared object, which the software driver loads
// as a cubin.
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

extern char** environ;

namespace {

enum Result {
  kSuccess = 0,
  kOutOfMemory = 1,
  kCreationFailure = 2,
  kInvalidInput = 3,
  kInvalidProgram = 4,
  kInvalidOption = 5,
  kCompilation = 6,
  kNoNamesAfterCompilation = 8,
  kNoNamesBeforeCompilation = 9,
  kInvalidName = 10,
};
constexpr int kArchitectures[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

struct Program {
  std::string source, name, log, image;
  std::map<std::string, std::string> headers;
  std::vector<std::string> expressions;
  std::map<std::string, std::string> lowered;
  bool compiled = false, real = false;  // compiled for an sm_ architecture
};

std::mutex mutex;
std::set<Program*> programs;
uint64_t compilations;

Program* find(void* handle) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = programs.find(static_cast<Program*>(handle));
  return found == programs.end() ? nullptr : *found;
}

// Returns the qualified names of all kernels that are not templates: the identifier before the parameters of each
// __global__ function, and the namespaces around it.
std::vector<std::string> kernels_in(const std::string& text) {
  std::vector<std::string> names, tokens, scopes;
  const auto word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t at = 0; at < text.size();) {
    if (text.compare(at, 2, "//") == 0 || text[at] == '#') {
      while (at < text.size() && text[at] != '\n') ++at;
    } else if (text.compare(at, 2, "/*") == 0) {
      at = std::min(text.find("*/", at), text.size() - 2) + 2;
    } else if (text[at] == '"') {
      for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
      ++at;
    } else if (word(text[at])) {
      const size_t begin = at;
      while (at < text.size() && word(text[at])) ++at;
      tokens.push_back(text.substr(begin, at - begin));
    } else {
      if (!std::isspace(static_cast<unsigned char>(text[at]))) tokens.push_back(std::string(1, text[at]));
      ++at;
    }
  }
  for (size_t at = 0; at < tokens.size(); ++at) {
    if (tokens[at] == "{") {
      std::string scope = "::";
      size_t before = at;
      while (before > 1 && tokens[before - 1] != "namespace" &&
             (tokens[before - 1] == ":" || word(tokens[before - 1][0]))) {
        scope.insert(0, tokens[--before]);
      }
      scopes.push_back(before > 0 && tokens[before - 1] == "namespace" && scope.size() > 2 ? scope : "");
    } else if (tokens[at] == "}" && !scopes.empty()) {
      scopes.pop_back();
    } else if (tokens[at] == "template" && at + 1 < tokens.size() && tokens[at + 1] == "<") {
      int depth = 0;
      for (++at; at < tokens.size(); ++at) {
        depth += tokens[at] == "<" ? 1 : tokens[at] == ">" ? -1 : 0;
        if (depth == 0) break;
      }
      while (at + 1 < tokens.size() && tokens[at + 1] != "{" && tokens[at + 1] != ";") ++at;  // over a template kernel
    } else if (tokens[at] == "__global__") {
      size_t next = at + 1;
      while (next + 1 < tokens.size()) {
        if (tokens[next] == "__launch_bounds__") {
          while (next < tokens.size() && tokens[next] != ")") ++next;
        } else if (tokens[next + 1] == "(") {
          break;
        }
        ++next;
      }
      std::string name;
      for (const std::string& scope : scopes) name += scope;
      names.push_back(name + tokens[next]);
    }
  }
  return names;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// Runs the compiler, whose messages go to a file. Returns its exit status.
int run(const std::vector<std::string>& command, const std::string& messages) {
  std::vector<char*> arguments;
  for (const std::string& each : command) arguments.push_back(const_cast<char*>(each.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> variables;
  for (char** each = environ; *each; ++each) {
    if (std::strncmp(*each, "LD_", 3) != 0) variables.push_back(*each);
  }
  variables.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, messages.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child;
  const int failed = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), variables.data());
  posix_spawn_file_actions_destroy(&actions);
  int status = -1;
  return failed || waitpid(child, &status, 0) != child ? -1 : status;
}

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

Result read_options(Program& program, int count, const char* const* options, std::vector<std::string>& command) {
  int architecture = 75;
  bool fuses = true;
  for (int at = 0; at < count; ++at) {
    const std::string option = options[at];
    const size_t equals = option.find('=');
    const std::string name = option.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : option.substr(equals + 1);
    if (name == "--gpu-architecture" || name == "-arch") {
      program.real = starts_with(value, "sm_");
      if (!program.real && !starts_with(value, "compute_")) return kInvalidOption;
      architecture = std::atoi(value.c_str() + value.find('_') + 1);
      bool known = false;
      for (const int each : kArchitectures) known = known || each == architecture;
      if (!known) {
        program.log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
        return kInvalidOption;
      }
    } else if (name == "--std" || name == "-std") {
      command.push_back("-std=" + value);
    } else if (name == "--fmad" || name == "-fmad") {
      fuses = value != "false";
    } else if (starts_with(option, "-D") || starts_with(option, "-I") || starts_with(option, "-U")) {
      command.push_back(option);
    } else if (name == "--define-macro") {
      command.push_back("-D" + value);
    } else if (option != "-default-device" && option != "--device-as-default-execution-space" &&
               option != "-lineinfo" && option != "--generate-line-info") {
      program.log = "nvrtc: error: unrecognized option " + option + " found\n";
      return kInvalidOption;
    }
  }
  command.push_back(fuses ? "-ffp-contract=fast" : "-ffp-contract=off");
  command.push_back("-D__CUDA_ARCH__=" + std::to_string(architecture * 10));
  command.push_back("-DSOFTCUDA_ARCHITECTURE=" + std::to_string(architecture));
  return kSuccess;
}

// Returns the name of a kernel's symbol, in an object that is loaded for that purpose only.
Result find_lowered_names(Program& program, const std::string& object, size_t kernels) {
  void* const library = dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    program.log += std::string("nvrtc: error: ") + dlerror() + "\n";
    return kCompilation;
  }
  auto* const table = static_cast<char*>(dlsym(library, "softcuda_kernels"));
  constexpr size_t kEntry = 5 * sizeof(void*);
  for (size_t at = 0; at < program.expressions.size(); ++at) {
    void* address;
    std::memcpy(&address, table + (kernels + at) * kEntry, sizeof address);
    Dl_info found;
    if (dladdr(address, &found) && found.dli_sname) program.lowered[program.expressions[at]] = found.dli_sname;
  }
  dlclose(library);
  return kSuccess;
}

Result compile(Program& program, int count, const char* const* options) {
  const char* compiler = std::getenv("CXX");
  std::vector<std::string> command = {compiler && *compiler ? compiler : "g++"};
  if (const Result failed = read_options(program, count, options, command)) return failed;
  char pattern[] = "/tmp/softcuda-XXXXXX";
  if (!mkdtemp(pattern)) return kOutOfMemory;
  const std::filesystem::path folder = pattern;
  for (const auto& [name, text] : program.headers) write(folder / "include" / name, text);
  std::vector<std::string> kernels = kernels_in(program.source);
  std::ostringstream table;
  table << "\n\nextern \"C\" {\nextern const int softcuda_architecture = SOFTCUDA_ARCHITECTURE;\n"
           "extern const SoftcudaKernel softcuda_kernels[] = {\n";
  for (const auto& each : kernels) table << "SOFTCUDA_KERNEL(" << each << "),\n";
  for (std::string each : program.expressions) {
    each.erase(0, each.find_first_not_of(" &"));
    table << "SOFTCUDA_KERNEL((" << each << ")),\n";
  }
  table << "{nullptr, 0, nullptr, nullptr, nullptr}};\n}\n";
  const std::string source = folder / "program.cu", object = folder / "object.so", messages = folder / "messages";
  write(source, "#line 1 \"" + program.name + "\"\n" + program.source + table.str());
  for (const char* each :
       {"-x", "c++", "-O1", "-g0", "-w", "-fPIC", "-shared", "-nostdinc", "-nostdinc++", "-U__SIZEOF_INT128__",
        "-fno-math-errno", "-fno-gnu-unique", "-fno-trapping-math", "-include", PRELUDE}) {
    command.push_back(each);
  }
  command.push_back("-I" + (folder / "include").string());
  for (const std::string& each : {source, std::string("-o"), object, std::string("-lm")}) command.push_back(each);
  Result result = run(command, messages) ? kCompilation : kSuccess;
  program.log += read(messages);
  if (!result) {
    program.image = read(object);
    if (!program.expressions.empty()) result = find_lowered_names(program, object, kernels.size());
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return result;
}

}  // namespace

#define PROGRAM(name, handle)         \
  Program* const name = find(handle); \
  if (!name) return kInvalidProgram

#define TEXT_OF(function, value)                             \
  int nvrtcGet##function##Size(void* handle, size_t* size) { \
    PROGRAM(program, handle);                                \
    if (!size) return kInvalidInput;                         \
    *size = (value).size();                                  \
    return kSuccess;                                         \
  }                                                          \
  int nvrtcGet##function(void* handle, char* text) {         \
    PROGRAM(program, handle);                                \
    if (!text) return kInvalidInput;                         \
    std::memcpy(text, (value).data(), (value).size());       \
    return kSuccess;                                         \
  }

extern "C" {

const char* nvrtcGetErrorString(int code) {
  switch (code) {
    case kSuccess:
      return "NVRTC_SUCCESS";
    case kOutOfMemory:
      return "NVRTC_ERROR_OUT_OF_MEMORY";
    case kInvalidInput:
      return "NVRTC_ERROR_INVALID_INPUT";
    case kInvalidProgram:
      return "NVRTC_ERROR_INVALID_PROGRAM";
    case kInvalidOption:
      return "NVRTC_ERROR_INVALID_OPTION";
    case kCompilation:
      return "NVRTC_ERROR_COMPILATION";
    default:
      return "NVRTC_ERROR unknown";
  }
}

int nvrtcVersion(int* major, int* minor) {
  if (!major || !minor) return kInvalidInput;
  *major = 13;
  *minor = 0;
  return kSuccess;
}

int nvrtcGetNumSupportedArchs(int* count) {
  if (!count) return kInvalidInput;
  *count = static_cast<int>(std::size(kArchitectures));
  return kSuccess;
}

int nvrtcGetSupportedArchs(int* all) {
  if (!all) return kInvalidInput;
  std::copy(std::begin(kArchitectures), std::end(kArchitectures), all);
  return kSuccess;
}

int nvrtcCreateProgram(void** result, const char* source, const char* name, int headers, const char* const* texts,
                       const char* const* names) {
  if (!result || !source || headers < 0 || (headers && (!texts || !names))) return kInvalidInput;
  auto* const program = new Program;
  program->source = source;
  program->name = name && *name ? name : "default_program";
  for (int at = 0; at < headers; ++at) program->headers[names[at]] = texts[at];
  const std::lock_guard<std::mutex> lock(mutex);
  programs.insert(program);
  *result = program;
  return kSuccess;
}

int nvrtcDestroyProgram(void** handle) {
  if (!handle) return kInvalidProgram;
  PROGRAM(program, *handle);
  const std::lock_guard<std::mutex> lock(mutex);
  programs.erase(program);
  delete program;
  *handle = nullptr;
  return kSuccess;
}

int nvrtcCompileProgram(void* handle, int count, const char* const* options) {
  PROGRAM(program, handle);
  if (count < 0 || (count && !options)) return kInvalidInput;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    ++compilations;
  }
  const Result result = compile(*program, count, options);
  program->compiled = result == kSuccess;
  program->log += '\0';
  return result;
}

int nvrtcAddNameExpression(void* handle, const char* expression) {
  PROGRAM(program, handle);
  if (!expression) return kInvalidInput;
  if (program->compiled) return kNoNamesAfterCompilation;
  program->expressions.emplace_back(expression);
  return kSuccess;
}

int nvrtcGetLoweredName(void* handle, const char* expression, const char** name) {
  PROGRAM(program, handle);
  if (!expression || !name) return kInvalidInput;
  if (!program->compiled) return kNoNamesBeforeCompilation;
  const auto found = program->lowered.find(expression);
  if (found == program->lowered.end()) return kInvalidName;
  *name = found->second.c_str();
  return kSuccess;
}

TEXT_OF(ProgramLog, program->log)
TEXT_OF(PTX, program->image)
TEXT_OF(CUBIN, program->real ? program->image : std::string())

// Requests of a test, through ctypes.
uint64_t softcuda_compilations() {
  const std::lock_guard<std::mutex> lock(mutex);
  return compilations;
}

int64_t softcuda_live_programs() {
  const std::lock_guard<std::mutex> lock(mutex);
  return static_cast<int64_t>(programs.size());
}
}
