// The HIP runtime of programs whose kernels an emulator executes in the same process. A device's memory is the host's, and
// streams hold nothing back: work is done when it is enqueued. Linked in the place of amdhip64, with Python.
//
// Each allocation lies between pages that may not be touched and ends at one of them, so that the first access behind it
// ends the process. Workgroup memory does so, too. The exit status is then 3.

#include <Python.h>
#include <hip/hip_runtime_api.h>

#include <immintrin.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr auto page = std::size_t{4096};
constexpr auto alignment = std::size_t{256};
constexpr auto device_memory = std::size_t{1} << 42;
constexpr auto workgroup_memory = std::size_t{256} << 10;
constexpr auto status_of_a_fault = 3;
constexpr auto status_of_the_emulator = 4;

constexpr std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

struct device_kernel {
  const void* bundle;
  std::string name;
};

struct mapping {
  std::byte* start;
  std::size_t bytes;
};

/// Launches by a function of Python, which returns 0 when the kernel has ended.
using launch_function = int (*)(int device, const void* bundle, const char* name, const unsigned* grid_and_workgroup,
                                void** arguments, std::size_t dynamic_bytes);

struct emulated_machine {
  std::mutex mutex;
  std::unordered_map<const void*, device_kernel> kernels;
  std::unordered_map<const void*, mapping> allocations;
  std::size_t allocated = 0;
  std::vector<std::string> targets;
  launch_function launch = nullptr;
};

emulated_machine& machine() {
  static auto& only = *new emulated_machine;  // outlives every static object
  return only;
}

thread_local auto current_device = 0;
thread_local auto last_error = hipSuccess;

hipError_t answer(hipError_t status) {
  if (status != hipSuccess) {
    last_error = status;
  }
  return status;
}

/// Where a wave is when it touches what it may not.
struct running_wave {
  const std::uint32_t* scalars = nullptr;
  std::uint64_t code = 0;
  const char* kernel = "";
};
thread_local running_wave running;

constexpr auto counter_low = 256;  // where the emulator has the program counter

std::uint64_t counter_of(const std::uint32_t* scalars) {
  return scalars[counter_low] | std::uint64_t{scalars[counter_low + 1]} << 32;
}

void report_fault(int signal, siginfo_t* info, void* /*context*/) {
  auto text = std::array<char, 1024>{};
  if (running.scalars == nullptr) {
    std::snprintf(text.data(), text.size(), "\nsignal %d outside kernels, at address %p\n", signal, info->si_addr);
  } else {
    std::snprintf(text.data(), text.size(), "\n%s: signal %d at address %p, by the instruction at offset 0x%llx\n",
                  running.kernel, signal, info->si_addr,
                  static_cast<unsigned long long>(counter_of(running.scalars) - running.code));
  }
  static_cast<void>(!write(STDERR_FILENO, text.data(), std::strlen(text.data())));
  _exit(status_of_a_fault);
}

hipError_t allocate(void** pointer, std::size_t bytes) {
  *pointer = nullptr;
  if (bytes == 0) {
    return hipSuccess;
  }
  auto& all = machine();
  const auto lock = std::lock_guard(all.mutex);
  if (bytes > device_memory - all.allocated) {
    return answer(hipErrorOutOfMemory);
  }
  const auto usable = round_up(bytes, page);
  void* const start = mmap(nullptr, usable + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) {
    return answer(hipErrorOutOfMemory);
  }
  auto* const first = static_cast<std::byte*>(start) + page;
  if (mprotect(first, usable, PROT_READ | PROT_WRITE) != 0) {
    munmap(start, usable + 2 * page);
    return answer(hipErrorOutOfMemory);
  }
  *pointer = first + (usable - round_up(bytes, alignment));
  all.allocations.emplace(*pointer, mapping{static_cast<std::byte*>(start), usable + 2 * page});
  all.allocated += usable;
  return hipSuccess;
}

hipError_t release(void* pointer) {
  if (pointer == nullptr) {
    return hipSuccess;
  }
  auto& all = machine();
  const auto lock = std::lock_guard(all.mutex);
  const auto found = all.allocations.find(pointer);
  if (found == all.allocations.end()) {
    return answer(hipErrorInvalidValue);
  }
  all.allocated -= found->second.bytes - 2 * page;
  munmap(found->second.start, found->second.bytes);
  all.allocations.erase(found);
  return hipSuccess;
}

/// Devices are what EMULATED_TARGETS names; Python starts with the first question about them.
void start() {
  static auto once = std::once_flag{};
  std::call_once(once, [] {
    auto targets = std::istringstream(std::getenv("EMULATED_TARGETS"));
    for (auto target = std::string{}; std::getline(targets, target, ',');) {
      machine().targets.push_back(target);
    }
    Py_InitializeEx(0);
    if (PyRun_SimpleString("import os, sys\n"
                           "sys.path.insert(0, os.environ['EMULATED_BY'])\n"
                           "import device\n") != 0) {
      _exit(status_of_the_emulator);
    }
    std::atexit([] {
      std::fflush(nullptr);
      PyGILState_Ensure();
      PyRun_SimpleString("device.end()");
    });
    PyEval_SaveThread();
    struct sigaction action = {};
    action.sa_sigaction = report_fault;
    action.sa_flags = SA_SIGINFO;
    for (const auto signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
      sigaction(signal, &action, nullptr);
    }
  });
}

bool exists(int device) {
  start();
  return device >= 0 && device < static_cast<int>(machine().targets.size());
}

/// What Python has compiled of one instruction.
struct instruction {
  void (*run)(void*, void*, void*, void*, void*, void*);  // null: not compiled yet
  std::uint8_t buffers[6];                                // which of the wave's buffers it takes
  std::uint8_t ends_at_barrier;
  std::uint64_t times;
};

enum wave_state : int { ended, waiting, instruction_missing, endless, outside };

struct launch_configuration {
  dim3 grid;
  dim3 workgroup;
  std::size_t dynamic_bytes;
  hipStream_t stream;
};
thread_local launch_configuration pushed;

}  // namespace

extern "C" {

// --- for Python ---

void emulated_launches_by(launch_function launch) { machine().launch = launch; }

/// Memory for a workgroup, of whole 16 bytes: what follows it cannot be touched.
void* emulated_workgroup_memory(std::size_t bytes) {
  // An address in it has 32 bits, and waves that are wrong may use any.
  static auto* const memory = static_cast<std::byte*>(mmap(nullptr, workgroup_memory + (std::size_t{5} << 30), PROT_NONE,
                                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  static const auto usable = mprotect(memory, workgroup_memory, PROT_READ | PROT_WRITE) == 0;
  return usable && bytes <= workgroup_memory ? memory + workgroup_memory - bytes : nullptr;
}

/// Goes on with a wave until it ends, waits at a barrier, or needs an instruction that is not compiled.
int emulated_run_wave(instruction* code, std::uint64_t start_of_code, std::uint64_t bytes_of_code, std::uint32_t* scalars,
                      void* const* buffers, std::uint64_t most_steps, int flushes_subnormals, const char* kernel,
                      std::uint64_t* steps) {
  constexpr auto flushing = 0x8040U;
  const auto control = _mm_getcsr();
  _mm_setcsr(flushes_subnormals != 0 ? control | flushing : control & ~flushing);
  running = {scalars, start_of_code, kernel};
  auto state = endless;
  for (auto step = std::uint64_t{0}; step < most_steps; ++step) {
    const auto offset = counter_of(scalars) - start_of_code;
    if (counter_of(scalars) == ~std::uint64_t{0}) {
      state = ended;
      break;
    }
    if (offset >= bytes_of_code) {
      state = outside;
      break;
    }
    auto& next = code[offset / 4];
    if (next.run == nullptr) {
      state = instruction_missing;
      break;
    }
    next.run(buffers[next.buffers[0]], buffers[next.buffers[1]], buffers[next.buffers[2]], buffers[next.buffers[3]],
             buffers[next.buffers[4]], buffers[next.buffers[5]]);
    ++next.times;
    ++*steps;
    if (next.ends_at_barrier != 0) {
      state = waiting;
      break;
    }
  }
  running = {};
  _mm_setcsr(control);
  return state;
}

// --- what compilers call for kernels in a program ---

void** __hipRegisterFatBinary(const void* wrapper) {
  // The wrapper has two numbers of 32 bits, and then the bundle's address.
  const void* bundle = nullptr;
  std::memcpy(&bundle, static_cast<const std::byte*>(wrapper) + 8, sizeof(bundle));
  return new void*(const_cast<void*>(bundle));
}
void __hipUnregisterFatBinary(void** bundle) { delete bundle; }
void __hipRegisterFunction(void** bundle, const void* on_host, char*, const char* name, unsigned, void*, void*, void*,
                           void*, int*) {
  const auto lock = std::lock_guard(machine().mutex);
  machine().kernels[on_host] = {*bundle, name};
}
void __hipRegisterVar(void**, void*, char*, char*, int, std::size_t, int, int) {}
hipError_t __hipPushCallConfiguration(dim3 grid, dim3 workgroup, std::size_t dynamic_bytes, hipStream_t stream) {
  pushed = {grid, workgroup, dynamic_bytes, stream};
  return hipSuccess;
}
hipError_t __hipPopCallConfiguration(dim3* grid, dim3* workgroup, std::size_t* dynamic_bytes, hipStream_t* stream) {
  *grid = pushed.grid;
  *workgroup = pushed.workgroup;
  *dynamic_bytes = pushed.dynamic_bytes;
  *stream = pushed.stream;
  return hipSuccess;
}

// --- HIP ---

hipError_t hipLaunchKernel(const void* on_host, dim3 grid, dim3 workgroup, void** arguments, std::size_t dynamic_bytes,
                           hipStream_t) {
  start();
  const auto found = machine().kernels.find(on_host);
  if (found == machine().kernels.end()) {
    return answer(hipErrorInvalidDeviceFunction);
  }
  const auto lanes = std::uint64_t{workgroup.x} * workgroup.y * workgroup.z;
  if (lanes == 0 || lanes > 1024 || std::uint64_t{grid.x} * grid.y * grid.z == 0) {
    return answer(hipErrorInvalidConfiguration);
  }
  const unsigned sizes[] = {grid.x, grid.y, grid.z, workgroup.x, workgroup.y, workgroup.z};
  const auto& [bundle, name] = found->second;
  const auto failed = machine().launch(current_device, bundle, name.c_str(), sizes, arguments, dynamic_bytes) != 0;
  return answer(failed ? hipErrorLaunchFailure : hipSuccess);
}

hipError_t hipGetDeviceCount(int* count) {
  start();
  *count = static_cast<int>(machine().targets.size());
  return hipSuccess;
}
hipError_t hipGetDevice(int* device) {
  *device = current_device;
  return hipSuccess;
}
hipError_t hipSetDevice(int device) {
  if (!exists(device)) {
    return answer(hipErrorInvalidDevice);
  }
  current_device = device;
  return hipSuccess;
}
hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device) {
  if (!exists(device)) {
    return answer(hipErrorInvalidDevice);
  }
  const auto& target = machine().targets[static_cast<std::size_t>(device)];
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "emulated %s", target.c_str());
  std::snprintf(properties->gcnArchName, sizeof(properties->gcnArchName), "%s", target.c_str());
  properties->warpSize = target.starts_with("gfx9") ? 64 : 32;
  properties->totalGlobalMem = device_memory;
  properties->sharedMemPerBlock = 65536;
  properties->maxThreadsPerBlock = 1024;
  properties->multiProcessorCount = 2;
  return hipSuccess;
}
const char* hipGetErrorString(hipError_t status) {
  switch (status) {
    case hipSuccess: return "no error";
    case hipErrorInvalidDevice: return "invalid device ordinal";
    case hipErrorInvalidValue: return "invalid argument";
    case hipErrorLaunchFailure: return "unspecified launch failure";
    case hipErrorOutOfMemory: return "out of memory";
    default: return "an error of the emulated runtime";
  }
}
hipError_t hipGetLastError() { return std::exchange(last_error, hipSuccess); }
hipError_t hipPeekAtLastError() { return last_error; }
hipError_t hipDeviceSynchronize() { return hipSuccess; }

hipError_t hipMemGetInfo(std::size_t* free, std::size_t* total) {
  const auto lock = std::lock_guard(machine().mutex);
  *free = device_memory - machine().allocated;
  *total = device_memory;
  return hipSuccess;
}
hipError_t hipMalloc(void** pointer, std::size_t bytes) { return allocate(pointer, bytes); }
hipError_t hipFree(void* pointer) { return release(pointer); }
hipError_t hipMallocAsync(void** pointer, std::size_t bytes, hipStream_t) { return allocate(pointer, bytes); }
hipError_t hipFreeAsync(void* pointer, hipStream_t) { return release(pointer); }
hipError_t hipHostMalloc(void** pointer, std::size_t bytes, unsigned) { return allocate(pointer, bytes); }
hipError_t hipHostFree(void* pointer) { return release(pointer); }

hipError_t hipMemcpyAsync(void* to, const void* from, std::size_t bytes, hipMemcpyKind, hipStream_t) {
  std::memmove(to, from, bytes);
  return hipSuccess;
}
hipError_t hipMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                            std::size_t rows, hipMemcpyKind, hipStream_t) {
  if (width > std::min(to_pitch, from_pitch)) {
    return answer(hipErrorInvalidPitchValue);
  }
  for (auto row = std::size_t{0}; row < rows; ++row) {
    std::memmove(static_cast<std::byte*>(to) + row * to_pitch, static_cast<const std::byte*>(from) + row * from_pitch, width);
  }
  return hipSuccess;
}
hipError_t hipMemsetAsync(void* to, int byte, std::size_t bytes, hipStream_t) {
  std::memset(to, byte, bytes);
  return hipSuccess;
}

hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = exists(device) && exists(peer) ? 1 : 0;
  return hipSuccess;
}
hipError_t hipDeviceEnablePeerAccess(int peer, unsigned) { return exists(peer) ? hipSuccess : answer(hipErrorInvalidDevice); }
// Other processes cannot have this one's memory.
hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t*, void*) { return answer(hipErrorNotSupported); }
hipError_t hipIpcOpenMemHandle(void**, hipIpcMemHandle_t, unsigned) { return answer(hipErrorNotSupported); }
hipError_t hipIpcCloseMemHandle(void*) { return answer(hipErrorNotSupported); }

// Memory behind addresses that stay: a mapping makes pages accessible, and its end gives them back.
hipError_t hipMemGetAllocationGranularity(std::size_t* bytes, const hipMemAllocationProp*, hipMemAllocationGranularity_flags) {
  *bytes = std::size_t{2} << 20;
  return hipSuccess;
}
hipError_t hipMemAddressReserve(void** pointer, std::size_t bytes, std::size_t, void*, unsigned long long) {
  void* const reserved = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *pointer = reserved == MAP_FAILED ? nullptr : reserved;
  return reserved == MAP_FAILED ? answer(hipErrorOutOfMemory) : hipSuccess;
}
hipError_t hipMemAddressFree(void* pointer, std::size_t bytes) {
  munmap(pointer, bytes);
  return hipSuccess;
}
hipError_t hipMemCreate(hipMemGenericAllocationHandle_t* piece, std::size_t bytes, const hipMemAllocationProp*,
                        unsigned long long) {
  auto& all = machine();
  const auto lock = std::lock_guard(all.mutex);
  if (bytes > device_memory - all.allocated) {
    return answer(hipErrorOutOfMemory);
  }
  all.allocated += bytes;
  *piece = {};
  return hipSuccess;
}
hipError_t hipMemRelease(hipMemGenericAllocationHandle_t) { return hipSuccess; }
hipError_t hipMemMap(void*, std::size_t, std::size_t, hipMemGenericAllocationHandle_t, unsigned long long) {
  return hipSuccess;
}
hipError_t hipMemSetAccess(void* pointer, std::size_t bytes, const hipMemAccessDesc*, std::size_t) {
  return mprotect(pointer, bytes, PROT_READ | PROT_WRITE) == 0 ? hipSuccess : answer(hipErrorInvalidValue);
}
hipError_t hipMemUnmap(void* pointer, std::size_t bytes) {
  const auto lock = std::lock_guard(machine().mutex);
  machine().allocated -= bytes;
  constexpr auto flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return mmap(pointer, bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED ? answer(hipErrorInvalidValue) : hipSuccess;
}

hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned) {
  *stream = reinterpret_cast<hipStream_t>(new char);
  return hipSuccess;
}
hipError_t hipStreamDestroy(hipStream_t stream) {
  delete reinterpret_cast<char*>(stream);
  return hipSuccess;
}
hipError_t hipStreamSynchronize(hipStream_t) { return hipSuccess; }
hipError_t hipStreamQuery(hipStream_t) { return hipSuccess; }
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned) { return hipSuccess; }
hipError_t hipStreamAddCallback(hipStream_t stream, hipStreamCallback_t callback, void* argument, unsigned) {
  callback(stream, hipSuccess, argument);
  return hipSuccess;
}
hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned) {
  *event = reinterpret_cast<hipEvent_t>(new char);
  return hipSuccess;
}
hipError_t hipEventDestroy(hipEvent_t event) {
  delete reinterpret_cast<char*>(event);
  return hipSuccess;
}
hipError_t hipEventRecord(hipEvent_t, hipStream_t) { return hipSuccess; }
hipError_t hipEventSynchronize(hipEvent_t) { return hipSuccess; }
hipError_t hipEventQuery(hipEvent_t) { return hipSuccess; }
hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t, hipEvent_t) {
  *milliseconds = 0.0F;
  return hipSuccess;
}

}  // extern "C"
