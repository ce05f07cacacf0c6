#pragma once

#include <type_traits>
#include <utility>

namespace pagedkv::detail {

/// A reference to a function object, which has to live as long. For what an operation rarely calls: its code then
/// depends on the signature alone, and is not compiled again for each caller's function.
template <class Signature>
class function_ref;

template <class Result, class... Arguments>
class function_ref<Result(Arguments...)> {
 public:
  template <class Function>
    requires std::is_invocable_r_v<Result, const Function&, Arguments...>
  function_ref(const Function& function) noexcept  // NOLINT(google-explicit-constructor)
      : function_(&function), call_(call<Function>) {}

  Result operator()(Arguments... arguments) const noexcept {
    return call_(function_, std::forward<Arguments>(arguments)...);
  }

 private:
  template <class Function>
  static Result call(const void* function, Arguments... arguments) noexcept {
    return static_cast<Result>((*static_cast<const Function*>(function))(std::forward<Arguments>(arguments)...));
  }

  const void* function_;
  Result (*call_)(const void*, Arguments...) noexcept;
};

}  // namespace pagedkv::detail
