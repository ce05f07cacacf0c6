#include "../../examples/llama/tokenizer.hpp"
#include "plain_generation.hpp"
#include "small_models.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

using namespace llama;
using namespace llama::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using json = nlohmann::json;

std::string refusal(const std::filesystem::path& folder) {
  try {
    static_cast<void>(model(folder));
  } catch (const bad_model& error) {
    return error.what();
  }
  return "accepted";
}

/// Why a model is refused whose `config.json` was changed.
std::string refusal_of(const std::string& name, const std::function<void(json&)>& change) {
  auto changed = reference_of(name);
  const auto folder = model_folder(changed);
  change(changed.config);
  std::ofstream(folder.path() / "config.json") << changed.config;
  return refusal(folder.path());
}

void overwrite(const std::filesystem::path& path, std::uint64_t at, const std::string& bytes) {
  auto file = std::fstream(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(at));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

TEST_CASE("a missing or damaged file of a model is refused by name", "[llama]") {
  const auto folder = model_folder(reference_of("llama"));
  const auto weights = folder.path() / "model.safetensors";
  const auto size = std::filesystem::file_size(weights);

  SECTION("truncated anywhere") {
    for (const auto kept : {std::uintmax_t{0}, std::uintmax_t{7}, std::uintmax_t{100}, size / 2, size - 1}) {
      std::filesystem::resize_file(weights, kept);
      CHECK_THAT(refusal(folder.path()), ContainsSubstring("model.safetensors"));
    }
  }
  SECTION("a header longer than the file") {
    overwrite(weights, 0, std::string(8, '\xff'));
    CHECK_THAT(refusal(folder.path()), ContainsSubstring("header"));
  }
  SECTION("a header that is no JSON") {
    overwrite(weights, 8, "]");
    CHECK_THAT(refusal(folder.path()), ContainsSubstring("JSON"));
  }
  SECTION("a header of arrays in arrays") {
    const auto deep = std::string(20'000, '[') + std::string(20'000, ']');
    auto file = std::ofstream(weights, std::ios::binary);
    const auto header_size = std::uint64_t{deep.size()};
    file.write(reinterpret_cast<const char*>(&header_size), sizeof header_size) << deep << std::flush;
    CHECK_THAT(refusal(folder.path()), ContainsSubstring("deep"));
  }
  SECTION("missing files") {
    std::filesystem::remove(weights);
    CHECK_THAT(refusal(folder.path()), ContainsSubstring("model.safetensors: cannot be read"));
    std::filesystem::remove(folder.path() / "config.json");
    CHECK_THAT(refusal(folder.path()), ContainsSubstring("config.json: cannot be read"));
    CHECK_THROWS_AS(tokenizer(folder.path()), bad_model);
  }
  SECTION("a pipe, which nobody writes") {
    std::filesystem::remove(weights);
    REQUIRE(::mkfifo(weights.c_str(), S_IRUSR | S_IWUSR) == 0);
    CHECK_THAT(refusal(folder.path()), ContainsSubstring("model.safetensors: cannot be read"));
  }
  SECTION("a folder where a file should be") {
    for (const auto* const name : {"config.json", "tokenizer.json"}) {
      std::filesystem::remove(folder.path() / name);
      std::filesystem::create_directory(folder.path() / name);
    }
    CHECK_THAT(refusal(folder.path()), ContainsSubstring("config.json: cannot be read"));
    CHECK_THROWS_AS(tokenizer(folder.path()), bad_model);
  }
  SECTION("an index that names a file elsewhere") {
    std::ofstream(folder.path() / "model.safetensors.index.json") << json{{"weight_map", {{"a", "../b.safetensors"}}}};
    CHECK_THAT(refusal(folder.path()), ContainsSubstring("weight_map"));
  }
}

TEST_CASE("tensors that a model needs are missed by name", "[llama]") {
  for (const auto* const name : {"qwen3", "gemma3"}) {
    for (const auto* const tensor :
         {"model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.k_norm.weight"}) {
      auto damaged = reference_of(name);
      damaged.shapes.erase(tensor);
      CHECK_THAT(refusal(model_folder(damaged).path()), ContainsSubstring(tensor));
    }
  }
}

TEST_CASE("a damaged tokenizer is refused", "[llama]") {
  const auto refusal_of = [](const std::function<void(json&)>& change) {
    const auto folder = changed_tokenizer(change);
    try {
      static_cast<void>(tokenizer(folder.path()));
    } catch (const bad_model& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK_THAT(refusal_of([](json& t) { t["model"]["merges"] = json::array({"a b", "ab"}); }),
             ContainsSubstring("the merge ab"));
  CHECK_THAT(refusal_of([](json& t) { t["model"]["merges"] = json::array({" a"}); }),
             ContainsSubstring("the merge  a"));
  CHECK_THAT(refusal_of([](json& t) { t["model"]["merges"] = json::array({""}); }), ContainsSubstring("the merge"));
  CHECK_THAT(refusal_of([](json& t) { t["model"]["merges"] = json::array({json::array({"a"})}); }),
             ContainsSubstring("member"));
  CHECK_THAT(refusal_of([](json& t) { t["model"]["vocab"]["a"] = -1; }), ContainsSubstring("-1"));
  CHECK_THAT(refusal_of([](json& t) { t["model"]["type"] = "Unigram"; }), ContainsSubstring("Unigram"));
  CHECK_THAT(refusal_of([](json& t) { t.erase("model"); }), ContainsSubstring("model"));
  CHECK_THAT(refusal_of([](json& t) { t["added_tokens"] = json::array({7}); }), ContainsSubstring("member"));
  CHECK_THAT(refusal_of([](json& t) { t["pre_tokenizer"] = {{"type", "Digits"}}; }), ContainsSubstring("Digits"));
  CHECK_THAT(refusal_of([](json& t) { t["normalizer"] = {{"type", "NFKC"}}; }), ContainsSubstring("NFKC"));
}

TEST_CASE("a configuration that does not fit is refused with its member", "[llama]") {
  CHECK_THAT(refusal_of("llama", [](json& c) { c["model_type"] = "gpt2"; }), ContainsSubstring("model_type gpt2"));
  CHECK_THAT(refusal_of("llama", [](json& c) { c.erase("hidden_size"); }), ContainsSubstring("hidden_size"));
  CHECK_THAT(refusal_of("llama", [](json& c) { c["hidden_size"] = -4; }), ContainsSubstring("hidden_size"));
  CHECK_THAT(refusal_of("llama", [](json& c) { c["hidden_size"] = "wide"; }), ContainsSubstring("hidden_size"));
  CHECK_THAT(refusal_of("llama", [](json& c) { c["num_key_value_heads"] = 3; }),
             ContainsSubstring("num_key_value_heads"));
  CHECK_THAT(refusal_of("llama", [](json& c) { c["intermediate_size"] = 100; }), ContainsSubstring("mlp.gate_proj"));
  CHECK_THAT(refusal_of("llama", [](json& c) { c["num_hidden_layers"] = 9; }), ContainsSubstring("is missing"));
  CHECK_THAT(refusal_of("llama", [](json& c) { c["rope_parameters"]["rope_type"] = "spiral"; }),
             ContainsSubstring("type spiral"));
  CHECK_THAT(refusal_of("llama", [](json& c) { c["rope_parameters"]["rope_type"] = "dynamic"; }),
             ContainsSubstring("none can be cached"));
  CHECK_THAT(refusal_of("phi3", [](json& c) { c["rope_parameters"]["long_factor"].erase(0); }),
             ContainsSubstring("long_factor"));
  CHECK_THAT(refusal_of("phi3", [](json& c) { c["rope_parameters"].erase("short_factor"); }),
             ContainsSubstring("short_factor"));
  CHECK_THAT(refusal_of("phi3", [](json& c) { c["num_key_value_heads"] = 1; }), ContainsSubstring("qkv_proj"));
  CHECK_THAT(refusal_of("bamba", [](json& c) { c["rope_parameters"]["rope_type"] = "longrope"; }),
             ContainsSubstring("longrope"));
  CHECK_THAT(refusal_of("llama", [](json& c) { c["rope_parameters"].erase("factor"); }), ContainsSubstring("factor"));
  CHECK_THAT(refusal_of("gemma3", [](json& c) { c["layer_types"].erase(0); }), ContainsSubstring("layer_types"));
  CHECK_THAT(refusal_of("gemma3", [](json& c) { c.erase("sliding_window"); }), ContainsSubstring("sliding_window"));
  CHECK_THAT(refusal_of("bamba", [](json& c) { c["mamba_d_head"] = 5; }), ContainsSubstring("mamba"));
}

TEST_CASE("all layers of Mistral's files have a window, unless they say otherwise", "[llama]") {
  auto config = reference_of("mistral").config;
  CHECK(model_config::parse(config).layers == std::vector(3, layer_kind::window));
  CHECK(model_config::parse(config).window == 24);
  config.erase("sliding_window");
  CHECK(model_config::parse(config).window == 4096);
  config["sliding_window"] = nullptr;
  CHECK(model_config::parse(config).attends_to_all());
}

TEST_CASE("Qwen 3's files without kinds of layers tell which have windows", "[llama]") {
  auto config = reference_of("qwen3").config;
  config.erase("layer_types");
  config["sliding_window"] = 24;
  config["max_window_layers"] = 1;
  CHECK(model_config::parse(config).attends_to_all());
  config["use_sliding_window"] = true;
  const auto read = model_config::parse(config);
  CHECK(read.layers == std::vector{layer_kind::full, layer_kind::window, layer_kind::window});
  CHECK(read.window == 24);
}

TEST_CASE("a configuration of arrays in arrays is refused", "[llama]") {
  auto deep = reference_of("llama");
  const auto folder = model_folder(deep);
  deep.config["eos_token_id"] = "HERE";
  auto text = deep.config.dump();
  text.replace(text.find("\"HERE\""), 6, std::string(200'000, '[') + std::string(200'000, ']'));
  std::ofstream(folder.path() / "config.json") << text;
  CHECK_THAT(refusal(folder.path()), ContainsSubstring("config.json") && ContainsSubstring("deep"));
}

TEST_CASE("sizes that would lead outside arrays are refused", "[llama]") {
  for (const auto factor : {1.5, 0.0, -0.5}) {
    const auto change = [=](json& c) { c["rope_parameters"]["partial_rotary_factor"] = factor; };
    CHECK_THAT(refusal_of("llama", change), ContainsSubstring("partial_rotary_factor"));
  }
  CHECK_THAT(refusal_of("bamba", [](json& c) { c["mamba_d_conv"] = 1; }), ContainsSubstring("mamba_d_conv"));
  CHECK_THAT(refusal_of("bamba", [](json& c) { c["mamba_d_head"] = -4; }), ContainsSubstring("mamba_d_head"));
  const auto expand = [](json& c) {
    c["mamba_expand"] = 1 << 30;
    c.erase("mamba_d_head");
  };
  CHECK_THAT(refusal_of("bamba", expand), ContainsSubstring("mamba_expand"));
  CHECK_THAT(refusal_of("bamba", [](json& c) { c["mamba_d_state"] = 1 << 30; }), ContainsSubstring("mamba_d_state"));
}

TEST_CASE("sizes that no model has are refused before anything is made of them", "[llama]") {
  CHECK_THAT(refusal_of("llama", [](json& c) { c["head_dim"] = 2147483646; }), ContainsSubstring("head_dim"));
  CHECK_THAT(refusal_of("llama", [](json& c) { c["num_hidden_layers"] = 2147483647; }),
             ContainsSubstring("num_hidden_layers"));
  const auto derived = [](json& c) {
    c["hidden_size"] = 2147483646;
    c["num_attention_heads"] = c["num_key_value_heads"] = 1;
    c.erase("head_dim");
  };
  CHECK_THAT(refusal_of("llama", derived), ContainsSubstring("head_dim"));
}

TEST_CASE("numbers that would turn all results into NaN are refused", "[llama]") {
  for (const auto base : {0.0, -1e4, 1e-30}) {
    CHECK_THAT(refusal_of("llama", [=](json& c) { c["rope_parameters"]["rope_theta"] = base; }),
               ContainsSubstring("rope_theta"));
    CHECK_THAT(refusal_of("gemma3", [=](json& c) { c["rope_parameters"]["sliding_attention"]["rope_theta"] = base; }),
               ContainsSubstring("rope_local_base_freq"));
  }
  const auto refusal_with = [](const std::string& type, const json& numbers) {
    return refusal_of("llama", [&](json& c) {
      c["rope_parameters"].update(numbers);
      c["rope_parameters"]["rope_type"] = type;
    });
  };
  CHECK_THAT(refusal_with("linear", {{"factor", 0.0}}), ContainsSubstring("rotary"));
  CHECK_THAT(refusal_with("linear", {{"factor", -2.0}}), ContainsSubstring("rotary"));
  CHECK_THAT(refusal_with("linear", {{"factor", 1e-38}}), ContainsSubstring("rotary"));
  CHECK_THAT(refusal_with("llama3", {{"factor", 8.0},
                                     {"low_freq_factor", 0.0},
                                     {"high_freq_factor", 0.0},
                                     {"original_max_position_embeddings", 0}}),
             ContainsSubstring("rotary"));
  CHECK_THAT(refusal_with("yarn", {{"factor", 0.0}, {"original_max_position_embeddings", 64}}),
             ContainsSubstring("rotary"));
  CHECK_THAT(refusal_of("phi3", [](json& c) { c["rope_parameters"]["long_factor"][0] = 0; }),
             ContainsSubstring("rotary"));
  for (const auto epsilon : {0.0, -1e-6}) {
    CHECK_THAT(refusal_of("llama", [=](json& c) { c["rms_norm_eps"] = epsilon; }), ContainsSubstring("rms_norm_eps"));
  }
  CHECK_THAT(refusal_of("gemma3", [](json& c) { c["query_pre_attn_scalar"] = 0; }),
             ContainsSubstring("query_pre_attn_scalar"));
}

TEST_CASE("numbers that are not whole, or have too many bits, are refused", "[llama]") {
  const auto numbers = std::vector<json>{std::int64_t{1} << 32, 1e30, 1.5, -1, "1", true};
  for (const auto& number : numbers) {
    CAPTURE(number.dump());
    CHECK_THAT(refusal_of("llama", [&](json& c) { c["eos_token_id"] = number; }), ContainsSubstring("eos_token_id"));
    CHECK_THAT(refusal_of("llama", [&](json& c) { c["eos_token_id"] = {7, number}; }),
               ContainsSubstring("eos_token_id"));
    CHECK_THAT(refusal_of("bamba", [&](json& c) { c["attn_layer_indices"] = {number}; }),
               ContainsSubstring("attn_layer_indices"));
    const auto windows = [&](json& c) {
      c.erase("layer_types");
      c["use_sliding_window"] = true;
      c["max_window_layers"] = number;
    };
    CHECK_THAT(refusal_of("qwen3", windows), ContainsSubstring("max_window_layers"));
    const auto folder = changed_tokenizer([&](json& t) { t["model"]["vocab"]["a"] = number; });
    CHECK_THROWS_AS(tokenizer(folder.path()), bad_model);
    const auto added = changed_tokenizer([&](json& t) {
      t["added_tokens"].push_back({{"id", number}, {"content", "<|new|>"}, {"special", true}});
    });
    CHECK_THROWS_AS(tokenizer(added.path()), bad_model);
  }
  for (const auto* const layers : {"0", "-1", "1.5", "1e30", "99999999999999999999"}) {
    CHECK_THAT(refusal_of("llama", [&](json& c) { c["num_hidden_layers"] = json::parse(layers); }),
               ContainsSubstring("num_hidden_layers"));
  }
}

TEST_CASE("tensors of sizes that are no sizes are refused by name", "[llama]") {
  const auto folder = model_folder(reference_of("llama"));
  const auto weights = folder.path() / "model.safetensors";
  for (const auto* const wrong :
       {R"("shape":[-2,-2],"data_offsets":[0,16])", R"("shape":[2.5],"data_offsets":[0,8])",
        R"("shape":[1e30],"data_offsets":[0,8])", R"("shape":[2],"data_offsets":[-8,0])",
        R"("shape":[2],"data_offsets":[0,8.5])", R"("shape":[0,9223372036854775808],"data_offsets":[0,0])",
        R"("shape":[9223372036854775807,9],"data_offsets":[0,8])"}) {
    CAPTURE(wrong);
    const auto header = R"({"odd":{"dtype":"F32",)" + std::string(wrong) + "}}";
    const auto size = std::uint64_t{header.size()};
    auto file = std::ofstream(weights, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), sizeof size) << header << std::string(64, '\0') << std::flush;
    CHECK_THAT(refusal(folder.path()), ContainsSubstring("tensor odd"));
  }
}

TEST_CASE("functions that a model does not apply are refused", "[llama]") {
  CHECK_THAT(refusal_of("llama", [](json& c) { c["hidden_act"] = "relu"; }), ContainsSubstring("hidden_act relu"));
  CHECK_THAT(refusal_of("bamba", [](json& c) { c["hidden_act"] = "gelu"; }), ContainsSubstring("hidden_act gelu"));
  CHECK_THAT(refusal_of("gemma3", [](json& c) { c["hidden_activation"] = "silu"; }),
             ContainsSubstring("hidden_activation silu"));
  for (const auto* const name : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    CHECK_THAT(refusal_of("gemma3", [&](json& c) { c[name] = 30.0; }), ContainsSubstring(name));
  }
  CHECK_THAT(refusal_of("gemma3", [](json& c) { c["use_bidirectional_attention"] = true; }),
             ContainsSubstring("use_bidirectional_attention"));
}

TEST_CASE("members that Bamba's published files lack have its values", "[llama]") {
  auto published = reference_of("bamba").config;
  const auto expected = model_config::parse(published);
  published.erase("rms_norm_eps");
  published.erase("rope_parameters");
  const auto read = model_config::parse(published);
  CHECK(read.norm_epsilon == expected.norm_epsilon);
  CHECK(read.full_rotation.frequencies == expected.full_rotation.frequencies);
  published["partial_rotary_factor"] = 0.25;
  CHECK(2 * model_config::parse(published).full_rotation.frequencies.size() == read.full_rotation.frequencies.size());
}

TEST_CASE("older files describe the same model", "[llama]") {
  auto older = reference_of("gemma3");
  const auto parameters = older.config["rope_parameters"];
  older.config.erase("rope_parameters");
  older.config["rope_theta"] = parameters["full_attention"]["rope_theta"];
  older.config["rope_scaling"] = {{"type", "linear"}, {"factor", parameters["full_attention"]["factor"]}};
  older.config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"];
  const auto folder = model_folder(older);
  auto loaded = model(folder.path());
  CHECK(generate_plainly(loaded, older.cases[2].prompt, 40) == older.cases[2].tokens);
}

TEST_CASE("weights of 16 bits are read", "[llama]") {
  const auto& of = reference_of("llama");
  for (const auto* const type : {"F16", "BF16"}) {
    const auto folder = model_folder(of, type);
    auto loaded = model(folder.path());
    CHECK(generate_plainly(loaded, of.cases[2].prompt, 1).front() == of.cases[2].tokens.front());
  }
}
