#pragma once

namespace pagedkv::executor {
class stream;
class event;
}  // namespace pagedkv::executor

namespace pagedkv::runtime {

// The numbers are those of CUDA and HIP.
enum status : int {
  success = 0,
  error_invalid_value = 1,
  error_out_of_memory = 2,
  error_invalid_configuration = 9,
  error_no_device = 100,
  error_invalid_device = 101,
  error_invalid_handle = 400,
  error_not_ready = 600,
  error_launch_failure = 719,
};

enum copy_kind : int { host_to_host = 0, host_to_device = 1, device_to_host = 2, device_to_device = 3 };

using stream = executor::stream*;
using event = executor::event*;
using stream_callback = void (*)(stream, status, void*);

}  // namespace pagedkv::runtime
