#include "config.hpp"

#include "files.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numbers>
#include <optional>

namespace llama {

namespace {

using json = nlohmann::json;

/// A member that is there and not null.
const json* find(const json& from, const char* name) {
  const auto found = from.find(name);
  return found == from.end() || found->is_null() ? nullptr : &*found;
}

template <class T>
T optional(const json& from, const char* name, T otherwise) {
  const auto* const found = find(from, name);
  return found == nullptr ? otherwise : found->get<T>();
}

constexpr auto largest = std::numeric_limits<std::int32_t>::max();

/// The library's own conversions cut off bits, and fractions.
std::int32_t integer_of(const json& value, const char* name, std::int32_t least, std::int32_t most = largest) {
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(largest)
                                               : value.is_number_integer();
  const auto number = fits ? value.get<std::int64_t>() : std::int64_t{-1};
  if (number < least || number > most) {
    throw bad_model(std::string("config.json: ") + name + " is not a whole number from " + std::to_string(least) +
                    " to " + std::to_string(most));
  }
  return static_cast<std::int32_t>(number);
}

std::int32_t size_of(const json& from, const char* name, std::optional<std::int32_t> otherwise = {},
                     std::int32_t most = largest) {
  const auto* const found = find(from, name);
  if (found == nullptr && !otherwise) {
    throw bad_model(std::string("config.json: ") + name + " is missing");
  }
  return integer_of(found == nullptr ? json(*otherwise) : *found, name, 1, most);
}

float positive(const json& from, const char* name, float otherwise) {
  const auto number = optional(from, name, otherwise);
  if (!(number > 0 && std::isfinite(number))) {
    throw bad_model(std::string("config.json: ") + name + " is not a number above 0");
  }
  return number;
}

/// The order of the cache's groups.
constexpr auto kinds_in_order = std::array{layer_kind::full, layer_kind::window, layer_kind::state};

/// Lists and loops are made of these before a tensor's shape confirms them.
constexpr auto most_layers = 65'536;
constexpr auto most_of_head = 65'536;

/// The frequencies of Llama 3.1: long waves are stretched, short ones stay, those between are mixed.
void stretch_as_llama_3(std::vector<float>& frequencies, const json& from) {
  const auto factor = from.at("factor").get<double>();
  const auto low = from.at("low_freq_factor").get<double>();
  const auto high = from.at("high_freq_factor").get<double>();
  const auto context = from.at("original_max_position_embeddings").get<double>();
  for (auto& frequency : frequencies) {
    const auto turns = context * static_cast<double>(frequency) / (2 * std::numbers::pi);  // within the old context
    const auto share = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    frequency = static_cast<float>(static_cast<double>(frequency) * (share + (1 - share) / factor));
  }
}

/// YaRN, https://arxiv.org/abs/2309.00071: a ramp over the dimensions between waves that stay and waves that stretch.
float stretch_as_yarn(std::vector<float>& frequencies, const json& from, double theta, std::int32_t dim) {
  const auto factor = from.at("factor").get<double>();
  const auto context = from.at("original_max_position_embeddings").get<double>();
  const auto dimension_of = [&](double turns) {
    return dim * std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  auto low = dimension_of(optional(from, "beta_fast", 32.0));
  auto high = dimension_of(optional(from, "beta_slow", 1.0));
  if (optional(from, "truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  for (auto i = std::size_t{0}; i < frequencies.size(); ++i) {
    const auto width = low == high ? 0.001 : high - low;
    const auto stretched = std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
    frequencies[i] = static_cast<float>(static_cast<double>(frequencies[i]) * (1 - stretched + stretched / factor));
  }
  const auto magnitude = [&](double weight) { return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1; };
  const auto above = optional(from, "mscale", 0.0);
  const auto below = optional(from, "mscale_all_dim", 0.0);
  const auto usual = above != 0 && below != 0 ? magnitude(above) / magnitude(below) : magnitude(1);
  return static_cast<float>(optional(from, "attention_factor", usual));
}

std::string type_of_rotation(const json& from) {
  return optional(from, "rope_type", optional(from, "type", std::string("default")));
}

/// LongRoPE, https://arxiv.org/abs/2402.13753: each frequency has a factor, and another one in long texts.
void stretch_as_longrope(rotation& made, const json& from, const model_config& of) {
  const auto divided = [&](const char* name) {
    const auto factors = from.at(name).get<std::vector<float>>();
    if (factors.size() != made.frequencies.size()) {
      throw bad_model(std::string("config.json: ") + name + " has not a factor for each pair of numbers turned");
    }
    auto quotients = made.frequencies;
    std::ranges::transform(quotients, factors, quotients.begin(), std::divides{});
    return quotients;
  };
  made.of_long = divided("long_factor");
  made.frequencies = divided("short_factor");
  const auto factor = optional(from, "factor", static_cast<double>(of.context) / of.most_of_short);
  const auto usual = factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(of.most_of_short));
  made.scale = static_cast<float>(optional(from, "attention_factor", usual));
}

/// Factors of 0, and others that no model has, would turn all that a model computes into NaN.
void check_rotation(const rotation& made) {
  const auto turns = [](float frequency) {
    return frequency >= 0 && std::isfinite(frequency * static_cast<float>(largest));
  };
  if (!std::ranges::all_of(made.frequencies, turns) || !std::ranges::all_of(made.of_long, turns) ||
      !std::isfinite(made.scale)) {
    throw bad_model("config.json: the factors of rotary embeddings give angles that are no numbers");
  }
}

/// `from`: an object as `rope_parameters` or `rope_scaling` hold it. `turned`: the share of a head where it has none.
rotation make_rotation(const model_config& of, const json& from, double theta, double turned) {
  turned = optional(from, "partial_rotary_factor", turned);
  if (!(turned > 0 && turned <= 1)) {
    throw bad_model("config.json: partial_rotary_factor is not a share of a head");
  }
  const auto dim = static_cast<std::int32_t>(of.head_dim * turned) / 2 * 2;
  if (!(theta >= 1 && std::isfinite(theta))) {
    throw bad_model("config.json: rope_theta, or rope_local_base_freq, is not a number from 1 on");
  }
  auto made = rotation{};
  for (auto i = 0; i < dim; i += 2) {
    made.frequencies.push_back(static_cast<float>(1 / std::pow(theta, static_cast<double>(i) / dim)));
  }
  const auto type = type_of_rotation(from);
  if (type == "linear") {
    const auto factor = from.at("factor").get<float>();
    std::ranges::for_each(made.frequencies, [&](float& frequency) { frequency /= factor; });
  } else if (type == "llama3") {
    stretch_as_llama_3(made.frequencies, from);
  } else if (type == "yarn") {
    made.scale = stretch_as_yarn(made.frequencies, from, theta, dim);
  } else if (type == "longrope") {
    stretch_as_longrope(made, from, of);
  } else if (type == "dynamic") {
    throw bad_model(
        "config.json: rotary embeddings of type dynamic turn all keys anew with each token of a long text, "
        "so that none can be cached");
  } else if (type != "default") {
    throw bad_model("config.json: rotary embeddings of type " + type +
                    " are not known; default, linear, llama3, yarn and longrope are");
  }
  check_rotation(made);
  return made;
}

void read_length_of_short(model_config& to, const json& chosen, const json& from) {
  constexpr auto name = "original_max_position_embeddings";
  if (to.kind == architecture::gemma_3 || to.kind == architecture::bamba) {
    throw bad_model("config.json: rotary embeddings of type longrope are known for models of Llama's and Qwen's kind");
  }
  to.most_of_short = size_of(find(chosen, name) == nullptr ? from : chosen, name);
}

/// Newer files have `rope_parameters`, by kind of layer where kinds differ; older ones have single members.
void read_rotations(model_config& to, const json& from) {
  const auto none = json::object();
  const auto* const all = find(from, "rope_parameters");
  const auto of_kind = [&](const char* kind) -> const json& {
    return all == nullptr ? none : find(*all, kind) == nullptr ? *all : *find(*all, kind);
  };
  const auto usual = to.kind == architecture::gemma_3 ? 1e6 : 1e4;
  const auto& full = of_kind("full_attention");
  const auto* const scaling = find(from, "rope_scaling");
  const auto theta = optional(full, "rope_theta", optional(from, "rope_theta", usual));
  // Bamba's published files do not say that half of a head is turned.
  const auto turned = optional(from, "partial_rotary_factor", to.kind == architecture::bamba ? 0.5 : 1.0);
  const auto& chosen = all == nullptr && scaling != nullptr ? *scaling : full;
  if (type_of_rotation(chosen) == "longrope") {
    read_length_of_short(to, chosen, from);
  }
  to.full_rotation = make_rotation(to, chosen, theta, turned);
  if (to.has(layer_kind::window)) {
    const auto& local = of_kind("sliding_attention");
    const auto local_theta = optional(local, "rope_theta", optional(from, "rope_local_base_freq", 1e4));
    to.window_rotation =
        to.kind == architecture::gemma_3 ? make_rotation(to, local, local_theta, turned) : to.full_rotation;
  }
}

/// Of Llama's kind, with a window in all layers: Mistral's unless its file says otherwise, Phi-3's if its file does.
bool has_window(const json& from) {
  const auto type = optional(from, "model_type", std::string());
  const bool is_null = from.contains("sliding_window") && from["sliding_window"].is_null();
  return (type == "mistral" && !is_null) || (type == "phi3" && find(from, "sliding_window") != nullptr);
}

std::vector<layer_kind> read_layers(const json& from, architecture kind) {
  auto layers = std::vector<layer_kind>(static_cast<std::size_t>(size_of(from, "num_hidden_layers", {}, most_layers)),
                                        layer_kind::full);
  if (kind == architecture::bamba) {
    std::ranges::fill(layers, layer_kind::state);
    const auto last = static_cast<std::int32_t>(layers.size()) - 1;
    for (const auto& index : from.at("attn_layer_indices")) {
      layers[static_cast<std::size_t>(integer_of(index, "attn_layer_indices", 0, last))] = layer_kind::full;
    }
  } else if (const auto* const types = find(from, "layer_types"); types != nullptr) {
    if (types->size() != layers.size()) {
      throw bad_model("config.json: layer_types has another length than num_hidden_layers");
    }
    for (auto i = std::size_t{0}; i < layers.size(); ++i) {
      const auto type = types->at(i).get<std::string>();
      if (type != "full_attention" && type != "sliding_attention") {
        throw bad_model("config.json: layers of type " + type + " are not known");
      }
      layers[i] = type == "full_attention" ? layer_kind::full : layer_kind::window;
    }
  } else if (kind == architecture::qwen_3 && optional(from, "use_sliding_window", false)) {
    const auto* const found = find(from, "max_window_layers");
    const auto num_full = found == nullptr ? 28 : integer_of(*found, "max_window_layers", 0);
    for (auto i = static_cast<std::size_t>(num_full); i < layers.size(); ++i) {
      layers[i] = layer_kind::window;
    }
  } else if (has_window(from)) {
    std::ranges::fill(layers, layer_kind::window);
  } else if (kind == architecture::gemma_3) {
    const auto pattern = static_cast<std::size_t>(size_of(from, "sliding_window_pattern", 6));
    for (auto i = std::size_t{0}; i < layers.size(); ++i) {
      layers[i] = (i + 1) % pattern == 0 ? layer_kind::full : layer_kind::window;
    }
  }
  return layers;
}

state_sizes read_state(const json& from, std::int32_t hidden) {
  auto sizes = state_sizes{};
  sizes.num_heads = size_of(from, "mamba_n_heads");
  const auto inner = std::int64_t{size_of(from, "mamba_expand", 2)} * hidden;
  if (inner > largest) {
    throw bad_model("config.json: mamba_expand is too large for hidden_size");
  }
  const auto* const dim = find(from, "mamba_d_head");
  sizes.head_dim = dim != nullptr && dim->is_number() ? size_of(from, "mamba_d_head")
                                                      : static_cast<std::int32_t>(inner / sizes.num_heads);
  sizes.num_groups = size_of(from, "mamba_n_groups", 1);
  sizes.state_dim = size_of(from, "mamba_d_state");
  sizes.kernel = size_of(from, "mamba_d_conv", 4);
  if (std::int64_t{sizes.num_heads} * sizes.head_dim != inner || sizes.num_heads % sizes.num_groups != 0) {
    throw bad_model("config.json: mamba_n_heads, mamba_d_head and mamba_n_groups do not fit hidden_size");
  }
  if (sizes.kernel < 2) {
    throw bad_model("config.json: mamba_d_conv is no convolution over several tokens");
  }
  // Each fits where the others are computed from it.
  const auto channels = inner + 2 * std::int64_t{sizes.num_groups} * sizes.state_dim;
  if (channels > largest || sizes.numbers() > largest) {
    throw bad_model("config.json: mamba_d_state or mamba_d_conv is too large");
  }
  return sizes;
}

std::vector<std::int32_t> read_end_tokens(const json& from) {
  constexpr auto name = "eos_token_id";
  const auto ends = optional(from, name, json::array());
  auto made = std::vector<std::int32_t>{};
  for (const auto& end : ends.is_array() ? ends : json::array({ends})) {
    made.push_back(integer_of(end, name, 0));
  }
  return made;
}

architecture read_architecture(const json& from) {
  static const auto known = std::map<std::string, architecture>{{"llama", architecture::llama},
                                                                {"mistral", architecture::llama},
                                                                {"phi3", architecture::llama},
                                                                {"qwen3", architecture::qwen_3},
                                                                {"gemma3_text", architecture::gemma_3},
                                                                {"bamba", architecture::bamba}};
  const auto type = optional(from, "model_type", std::string("(none)"));
  const auto found = known.find(type);
  if (found == known.end()) {
    throw bad_model("config.json: model_type " + type +
                    " is not known; llama, mistral, phi3, qwen3, gemma3_text and bamba are");
  }
  return found->second;
}

void check_activation(const json& from, bool is_gemma) {
  const auto* const name = is_gemma ? "hidden_activation" : "hidden_act";
  const auto known = std::string(is_gemma ? "gelu_pytorch_tanh" : "silu");
  if (const auto found = optional(from, name, known); found != known) {
    throw bad_model(std::string("config.json: ") + name + " " + found + " is not known; " + known + " is");
  }
}

/// Of Gemma 3's kind: soft caps and attention to later tokens, which its published chat models do without.
void check_gemma(const json& from) {
  for (const auto* const name :
       {"attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"}) {
    if (const auto* const found = find(from, name); found != nullptr && *found != false) {
      throw bad_model(std::string("config.json: ") + name + " is not known");
    }
  }
}

model_config parse_checked(const json& from) {
  auto made = model_config{};
  made.kind = read_architecture(from);
  const bool is_gemma = made.kind == architecture::gemma_3;
  made.vocabulary = size_of(from, "vocab_size");
  made.hidden = size_of(from, "hidden_size");
  made.intermediate = size_of(from, "intermediate_size");
  made.num_heads = size_of(from, "num_attention_heads");
  made.num_kv_heads = size_of(from, "num_key_value_heads", made.num_heads);
  made.head_dim = size_of(from, "head_dim", std::max(1, made.hidden / made.num_heads), most_of_head);
  if (made.num_heads % made.num_kv_heads != 0 || made.head_dim % 2 != 0) {
    throw bad_model("config.json: num_attention_heads is no multiple of num_key_value_heads, or head_dim is odd");
  }
  made.context = size_of(from, "max_position_embeddings", largest);
  const bool is_phi = optional(from, "model_type", std::string()) == "phi3";
  made.norm_epsilon = positive(from, "rms_norm_eps", is_phi || made.kind == architecture::bamba ? 1e-5f : 1e-6f);
  made.tied_embeddings = optional(from, "tie_word_embeddings", is_gemma);
  check_activation(from, is_gemma);
  if (is_gemma) {
    check_gemma(from);
  }
  made.gelu = is_gemma;
  made.embedding_scale = is_gemma ? std::sqrt(static_cast<float>(made.hidden)) : 1;
  const auto scalar = is_gemma ? positive(from, "query_pre_attn_scalar", 256.0f) : static_cast<float>(made.head_dim);
  made.attention_scale = 1 / std::sqrt(scalar);
  made.layers = read_layers(from, made.kind);
  if (made.has(layer_kind::window)) {
    made.window = size_of(from, "sliding_window", has_window(from) ? std::optional{4096} : std::nullopt);
  }
  if (made.has(layer_kind::state)) {
    made.state = read_state(from, made.hidden);
  }
  read_rotations(made, from);
  made.end_tokens = read_end_tokens(from);
  return made;
}

}  // namespace

model_config model_config::read(const std::filesystem::path& directory) {
  const auto whole = read_json(directory / "config.json");
  if (!whole.is_object()) {
    throw bad_model("config.json: is not an object");
  }
  return parse(whole);
}

model_config model_config::parse(const json& from) {
  try {
    return parse_checked(from);
  } catch (const json::exception& error) {
    throw bad_model(std::string("config.json: a member is missing or has another type: ") + error.what());
  }
}

tensor_files read_tensors(const std::filesystem::path& directory, const model_config& of) {
  auto files = tensor_files(directory);
  const auto of_queries = std::int64_t{of.num_heads} * of.head_dim;
  const auto of_keys = std::int64_t{of.num_kv_heads} * of.head_dim;
  for (auto i = std::size_t{0}; i < of.layers.size(); ++i) {
    const auto attention = "model.layers." + std::to_string(i) + ".self_attn.";
    const auto feed = "model.layers." + std::to_string(i) + ".mlp.";
    files.split(attention + "qkv_proj.weight", of.hidden,
                {{attention + "q_proj.weight", of_queries},
                 {attention + "k_proj.weight", of_keys},
                 {attention + "v_proj.weight", of_keys}});
    files.split(feed + "gate_up_proj.weight", of.hidden,
                {{feed + "gate_proj.weight", of.intermediate}, {feed + "up_proj.weight", of.intermediate}});
  }
  return files;
}

bool model_config::has(layer_kind wanted) const noexcept { return std::ranges::find(layers, wanted) != layers.end(); }

std::vector<layer_place> model_config::places() const {
  auto made = std::vector<layer_place>(layers.size());
  auto group = std::size_t{0};
  for (const auto each : kinds_in_order) {
    auto index = std::int32_t{0};
    for (auto i = std::size_t{0}; i < layers.size(); ++i) {
      if (layers[i] == each) {
        made[i] = {group, index++};
      }
    }
    group += has(each) ? 1U : 0U;
  }
  return made;
}

pagedkv::group_list model_config::groups() const {
  auto made = std::vector<pagedkv::group_config>{};
  for (const auto each : kinds_in_order) {
    const auto count = static_cast<std::int32_t>(std::ranges::count(layers, each));
    if (count == 0) {
      continue;
    }
    auto group = pagedkv::group_config{};
    group.num_layers = count;
    if (each == layer_kind::state) {
      group.kind = pagedkv::group_kind::state;
      group.key_dim = group.value_dim = 0;
      group.state_bytes = state.numbers() * static_cast<std::int64_t>(sizeof(float));
    } else {
      group.kind = each == layer_kind::full ? pagedkv::group_kind::full : pagedkv::group_kind::window;
      group.num_kv_heads = num_kv_heads;
      group.key_dim = group.value_dim = head_dim;
      group.window = each == layer_kind::full ? 0 : window;
    }
    made.push_back(group);
  }
  return pagedkv::group_list(std::span<const pagedkv::group_config>(made));
}

}  // namespace llama
