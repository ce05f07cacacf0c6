#pragma once

// Matrix products of the device's vendor: cuBLAS, hipBLAS, or OpenBLAS where the host executor is the device.

#include "kernels.hpp"

#include <pagedkv/device/device.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float32.hpp>

#include <cstdint>
#include <type_traits>

#if defined(__HIPCC__)
  #define HIPBLAS_V2
  #include <hipblas/hipblas.h>
#elif defined(__CUDACC__)
  #include "arrays.hpp"

  #include <cublas_v2.h>
#else
  #include "../numbers.hpp"

  #include <vector>
#endif

namespace llama::device {

/// `result[r][o] = sum over i of rows[r][i] * weights[o][i]`, or with `adds` what is there and that.
template <class Element, class Number>
struct product {
  static_assert(std::is_same_v<Element, pagedkv::float32> || std::is_same_v<Element, pagedkv::bfloat16>);
  static_assert(std::is_same_v<Number, float> || std::is_same_v<Number, storage_of<Element>>);

  const storage_of<Element>* rows;
  const storage_of<Element>* weights;
  Number* result;  // of `Element`, or float
  std::int32_t num_rows;
  std::int32_t num_in;
  std::int32_t num_out;
  bool adds = false;
};

#if defined(__HIPCC__)

/// Enqueues products. Throws `pagedkv::exception`.
class blas {
 public:
  blas() { check(hipblasCreate(&handle_)); }
  blas(const blas&) = delete;
  blas& operator=(const blas&) = delete;
  ~blas() { static_cast<void>(hipblasDestroy(handle_)); }

  template <class Element, class Number>
  void enqueue(const product<Element, Number>& of, pagedkv::runtime::stream stream) {
    const auto one = 1.0F;
    const auto added = of.adds ? 1.0F : 0.0F;
    check(hipblasSetStream(handle_, stream));
    // Columns of theirs are rows of ours.
    check(hipblasGemmEx(handle_, HIPBLAS_OP_T, HIPBLAS_OP_N, of.num_out, of.num_rows, of.num_in, &one, of.weights,
                        type_of<storage_of<Element>>, of.num_in, of.rows, type_of<storage_of<Element>>, of.num_in,
                        &added, of.result, type_of<Number>, of.num_out, HIPBLAS_COMPUTE_32F, HIPBLAS_GEMM_DEFAULT));
  }

 private:
  template <class Number>
  static constexpr auto type_of = sizeof(Number) == 2 ? HIP_R_16BF : HIP_R_32F;

  static void check(hipblasStatus_t status) {
    pagedkv::hip::require(status == HIPBLAS_STATUS_SUCCESS ? hipSuccess : hipErrorUnknown, "hipBLAS");
  }

  hipblasHandle_t handle_ = nullptr;
};

#elif defined(__CUDACC__)

/// Enqueues products. Throws `pagedkv::exception`.
class blas {
 public:
  blas() { check(cublasCreate(&handle_)); }
  blas(const blas&) = delete;
  blas& operator=(const blas&) = delete;
  ~blas() { static_cast<void>(cublasDestroy(handle_)); }

  template <class Element, class Number>
  void enqueue(const product<Element, Number>& of, pagedkv::runtime::stream stream) {
    const auto one = 1.0F;
    const auto added = of.adds ? 1.0F : 0.0F;
    check(cublasSetStream(handle_, stream));
    check(cublasSetWorkspace(handle_, workspace_.data(), workspace_.size()));  // kept by graphs
    // Columns of theirs are rows of ours.
    check(cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, of.num_out, of.num_rows, of.num_in, &one, of.weights,
                       type_of<storage_of<Element>>, of.num_in, of.rows, type_of<storage_of<Element>>, of.num_in,
                       &added, of.result, type_of<Number>, of.num_out, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }

 private:
  template <class Number>
  static constexpr auto type_of = sizeof(Number) == 2 ? CUDA_R_16BF : CUDA_R_32F;

  static void check(cublasStatus_t status) {
    pagedkv::hip::require(status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown,
                          status == CUBLAS_STATUS_SUCCESS ? "cuBLAS" : cublasGetStatusString(status));
  }

  cublasHandle_t handle_ = nullptr;
  device_array<std::byte> workspace_ = device_array<std::byte>(std::size_t{32} << 20);
};

#else

/// Computes products when the stream is empty.
class blas {
 public:
  template <class Element, class Number>
  void enqueue(const product<Element, Number>& of, pagedkv::runtime::stream stream) {
    pagedkv::hip::require(pagedkv::runtime::synchronize_stream(stream), "the wait for a stream");
    const auto rows = decoded<Element>(of.rows, of.num_rows, of.num_in);
    const auto weights = decoded<Element>(of.weights, of.num_out, of.num_in);
    auto result = std::vector<float>(static_cast<std::size_t>(of.num_rows) * static_cast<std::size_t>(of.num_out));
    llama::multiply(rows.data(), static_cast<std::size_t>(of.num_rows), of.num_in, weights.data(), of.num_out,
                    result.data());
    for (auto i = std::size_t{0}; i < result.size(); ++i) {
      if constexpr (sizeof(Number) == sizeof(float)) {
        of.result[i] = result[i] + (of.adds ? of.result[i] : 0.0F);
      } else {
        of.result[i] = Element::encode(result[i], 1);
      }
    }
  }

 private:
  template <class Element>
  [[nodiscard]] static std::vector<float> decoded(const storage_of<Element>* numbers, std::int32_t num_rows,
                                                  std::int32_t width) {
    auto all = std::vector<float>(static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(width));
    for (auto i = std::size_t{0}; i < all.size(); ++i) {
      all[i] = Element::decode(numbers[i], 1);
    }
    return all;
  }
};

#endif

}  // namespace llama::device
