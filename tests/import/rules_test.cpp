// Values that need thought, one by one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "import/rules.h"
#include "import/tools.h"
#include "import_support.h"
#include "support/places.h"
#include "support/process.h"

namespace octet {
namespace {

using test::fate_of;
using test::import_lf;
using test::import_text;
using test::reason_of;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(ImportRules, OptimizersAreAdamWOrRefused) {
  for (const char* name :
       {"adamw_torch", "adamw_torch_fused", "adamw_hf", "torch.optim.AdamW", "paged_adamw_32bit",
        "adamw_apex_fused", "adamw_anyprecision", "adamw_torch_npu_fused", "optimi_adamw", "paged_adamw"})
    EXPECT_EQ(fate_of(import_lf(fmt::format("optim: {}\n", name)), "optim"), "derived") << name;
  for (const char* name : {"adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit",
                           "bitsandbytes.optim.PagedAdamW8bit", "ao_adamw_fp8", "adamw_torch_8bit"})
    EXPECT_EQ(import_lf(fmt::format("optim: {}\n", name)).value("optimizer_state"), "fp8") << name;
  for (const char* name :
       {"adafactor", "sgd", "lion_8bit", "galore_adamw", "apollo_adamw", "muon", "lomo", "adalomo",
        "grokadamw", "stable_adamw", "adopt_adamw", "schedule_free_adamw", "radamw"})
    EXPECT_EQ(fate_of(import_lf(fmt::format("optim: {}\n", name)), "optim"), "refused") << name;
}

TEST(ImportRules, Schedules) {
  const auto value = [](const char* name) {
    return import_lf(fmt::format("lr_scheduler_type: {}\n", name)).value("lr_scheduler_type");
  };
  EXPECT_EQ(value("cosine"), "cosine");
  EXPECT_EQ(value("SchedulerType.LINEAR"), "linear");
  EXPECT_EQ(value("constant_with_warmup"), "constant");
  EXPECT_EQ(value("warmup_stable_decay"), "wsd");
  EXPECT_EQ(value("cosine_with_min_lr"), "cosine");
  for (const char* name : {"polynomial", "inverse_sqrt", "cosine_with_restarts", "reduce_lr_on_plateau"})
    EXPECT_EQ(fate_of(import_lf(fmt::format("lr_scheduler_type: {}\n", name)), "lr_scheduler_type"),
              "refused");
}

TEST(ImportRules, SectionsThatAreATextAreNotLost) {
  EXPECT_EQ(import_lf("lr_scheduler_kwargs: {min_lr_rate: 0.1}\n").value("min_lr_ratio"), "0.1");
  EXPECT_EQ(fate_of(import_lf("lr_scheduler_kwargs: '{\"min_lr_rate\": 0.1}'\n"), "lr_scheduler_kwargs"),
            "refused");
  EXPECT_EQ(fate_of(import_lf("lr_scheduler_kwargs: {}\n"), "lr_scheduler_kwargs"), "ignored");
  EXPECT_EQ(fate_of(import_lf("fsdp_config: fsdp.json\n"), "fsdp_config"), "warned");
  EXPECT_EQ(
      fate_of(import_text("{\"zero_optimization\": true, \"gradient_clipping\": 0.5}"), "zero_optimization"),
      "warned");
}

TEST(ImportRules, WarmUpInStepsOrAsAShare) {
  EXPECT_EQ(import_lf("warmup_steps: 20\nwarmup_ratio: 0.1\n").value("warmup_steps"), "20");
  EXPECT_EQ(import_lf("warmup_steps: 20\nwarmup_ratio: 0.1\n").value("warmup_ratio"), "");
  EXPECT_EQ(import_lf("warmup_ratio: 0.1\nwarmup_steps: 20\n").value("warmup_ratio"), "");
  EXPECT_EQ(import_lf("warmup_steps: 0.03\n").value("warmup_ratio"), "0.03");
  EXPECT_EQ(import_lf("warmup_steps: 0\nwarmup_ratio: 0.1\n").value("warmup_ratio"), "0.1");
  EXPECT_EQ(import_lf("warmup_steps: 0\nwarmup_ratio: 0.1\n").value("warmup_steps"), "");
}

TEST(ImportRules, StepsWinOverEpochs) {
  const ImportResult steps = import_lf("num_train_epochs: 2\nmax_steps: 30\n");
  EXPECT_EQ(steps.value("max_steps"), "30");
  EXPECT_EQ(steps.value("num_train_epochs"), "");
  EXPECT_EQ(import_lf("num_train_epochs: 2\nmax_steps: -1\n").value("num_train_epochs"), "2");
}

TEST(ImportRules, ReportTo) {
  EXPECT_EQ(import_lf("report_to: none\n").value("use_tensorboard"), "false");
  EXPECT_EQ(import_lf("report_to: tensorboard\n").value("use_tensorboard"), "true");
  EXPECT_EQ(import_lf("report_to: wandb\n").value("use_wandb"), "true");
  EXPECT_EQ(import_lf("report_to: wandb\n").value("use_tensorboard"), "false");
  EXPECT_EQ(fate_of(import_lf("report_to: wandb\n"), "report_to"), "mapped");
  EXPECT_EQ(import_lf("report_to: [wandb, tensorboard]\n").value("use_tensorboard"), "true");
  EXPECT_EQ(import_lf("report_to: all\n").value("use_wandb"), "true");
  EXPECT_EQ(fate_of(import_lf("report_to: swanlab\n"), "report_to"), "warned");
  EXPECT_EQ(import_lf("report_to: []\n").value("use_tensorboard"), "false");
}

TEST(ImportRules, StrategiesAndIntervals) {
  EXPECT_EQ(import_lf("eval_strategy: no\n").value("eval_strategy"), "no");
  EXPECT_EQ(import_lf("evaluation_strategy: epoch\n").value("eval_strategy"), "epoch");
  EXPECT_EQ(import_lf("eval_strategy: steps\nlogging_steps: 25\n").value("eval_steps"), "25");
  EXPECT_EQ(import_lf("save_strategy: best\n").value("save_strategy"), "steps");
  EXPECT_EQ(import_lf("save_steps: 0.1\nmax_steps: 500\n").value("save_steps"), "50");
  EXPECT_EQ(import_lf("save_total_limit: 1\n").value("save_total_limit"), "2");
  EXPECT_EQ(import_lf("save_total_limit: null\n").value("save_total_limit"), "0");
}

// A share of all steps, whose number only the run knows, is a number per epoch.
TEST(ImportRules, SharesOfARun) {
  const ImportResult save = import_lf("save_steps: 0.05\nnum_train_epochs: 2\n");
  EXPECT_EQ(save.value("saves_per_epoch"), "10");
  EXPECT_EQ(save.value("save_strategy"), "epoch");
  EXPECT_EQ(fate_of(save, "save_steps"), "mapped");
  EXPECT_FALSE(save.find("save_steps"));
  const ImportResult uneven = import_lf("save_strategy: steps\nsave_steps: 0.1\n");  // in 3 epochs
  EXPECT_EQ(uneven.value("saves_per_epoch"), "3");
  EXPECT_EQ(uneven.value("save_strategy"), "epoch");
  EXPECT_THAT(reason_of(uneven, "save_steps"), HasSubstr("3.33 times per epoch"));
  EXPECT_EQ(fate_of(uneven, "save_steps"), "warned");
  EXPECT_EQ(import_lf("save_steps: 0.9\n").value("saves_per_epoch"), "1");

  const ImportResult eval = import_lf("eval_steps: 0.25\neval_strategy: steps\nnum_train_epochs: 1\n");
  EXPECT_EQ(eval.value("evals_per_epoch"), "4");
  EXPECT_EQ(eval.value("eval_strategy"), "epoch");
  EXPECT_FALSE(import_lf("eval_steps: 0.25\n").find("evals_per_epoch"));  // the default is no evaluation
  EXPECT_EQ(import_lf("eval_steps: 0.25\n").value("eval_strategy"), "no");
  EXPECT_EQ(fate_of(import_lf("logging_steps: 0.01\n"), "logging_steps"), "warned");
  EXPECT_EQ(import_lf("logging_steps: 0.01\n").value("logging_steps"), "1");
  EXPECT_EQ(
      import_text(
          "base_model: org/llama\nmicro_batch_size: 2\nsequence_len: 64\neval_steps: 0.05\nflash_attention: true\nval_set_size: 0.1\n")
          .value("evals_per_epoch"),
      "20");
}

TEST(ImportRules, ADatasetThatIsNamedTwiceStaysInTheListTwice) {
  const ImportResult two = import_lf("dataset: a.jsonl,b.jsonl,./a.jsonl\ndataset_dir: ONLINE\n");
  EXPECT_THAT(two.find("dataset")->values, testing::ElementsAre("a.jsonl", "b.jsonl", "./a.jsonl"));
  const TrainConfig config = test::load(two);
  ASSERT_EQ(config.dataset.size(), 3u);
  for (const auto& item : config.dataset) EXPECT_EQ(item.weight, 0);
  EXPECT_EQ(test::load(import_lf("dataset: a,a\ndataset_dir: ONLINE\n")).dataset.size(), 2u);
}

TEST(ImportRules, PrecisionOfSeveralKeys) {
  EXPECT_EQ(import_lf("bf16: true\nfp8: true\n").value("mixed_precision"), "fp8");
  EXPECT_EQ(import_lf("fp8: true\nbf16: true\n").value("mixed_precision"), "fp8");
  EXPECT_EQ(fate_of(import_lf("bf16: true\nfp8: true\n"), "bf16"), "derived");
  EXPECT_EQ(import_lf("fp16: true\n").value("mixed_precision"), "bf16");
  EXPECT_EQ(fate_of(import_lf("fp16: true\n"), "fp16"), "warned");
  EXPECT_EQ(fate_of(import_lf("fp16: false\n"), "fp16"), "ignored");
}

TEST(ImportRules, Sharding) {
  const auto mode = [](const std::string& value) {
    return import_lf(fmt::format("fsdp: {}\n", value)).value("sharding_mode");
  };
  EXPECT_EQ(mode("full_shard auto_wrap"), "fsdp_full");
  EXPECT_EQ(mode("[full_shard, auto_wrap]"), "fsdp_full");
  EXPECT_EQ(mode("shard_grad_op"), "zero2");
  EXPECT_EQ(mode("NO_SHARD"), "none");
  EXPECT_EQ(mode("hybrid_shard auto_wrap"), "hsdp");
  EXPECT_EQ(mode("\"\""), "");
  const ImportResult offload = import_lf("fsdp: full_shard offload\n");
  EXPECT_EQ(fate_of(offload, "fsdp"), "warned");
  EXPECT_EQ(offload.value("sharding_mode"), "fsdp_full");
  EXPECT_EQ(fate_of(import_lf("fsdp: sideways\n"), "fsdp"), "refused");
}

TEST(ImportRules, ModelsAreRecognisedByTheirIds) {
  for (const char* id : {"meta-llama/Llama-3.1-8B",
                         "Qwen/Qwen2.5-14B-Instruct",
                         "Qwen/Qwen3-4B-Instruct-2507",
                         "mistralai/Mistral-7B-v0.3",
                         "openai-community/gpt2",
                         "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
                         "HuggingFaceTB/SmolLM2-1.7B",
                         "TinyLlama/TinyLlama-1.1B",
                         "NousResearch/Hermes-3-Llama-3.1-8B",
                         "deepcogito/cogito-v1-preview-qwen-14B",
                         "alignment-handbook/zephyr-7b-sft-full",
                         "deepseek-ai/deepseek-coder-6.7b-base",
                         "deepseek-ai/deepseek-llm-7b-chat",
                         "deepseek-ai/deepseek-math-7b-base",
                         "tiiuae/Falcon3-7B-Base",
                         "nvidia/Llama-3.1-Nemotron-70B-Instruct-HF",
                         "Phind/Phind-CodeLlama-34B-v2",
                         "./models/my-phi-notes-llama",
                         "me/prompt-tuned",
                         "me/gpt5-distilled"}) {
    EXPECT_FALSE(foreign_family(id)) << id << ": " << *foreign_family(id);
    EXPECT_FALSE(unsupported_model(id)) << id << ": " << *unsupported_model(id);
  }
  const std::pair<const char*, const char*> kOthers[] = {
      {"google/gemma-2-9b", "Gemma"}, {"microsoft/phi-2", "Phi"},
      {"microsoft/Phi-4", "Phi"},     {"deepseek-ai/DeepSeek-V3", "DeepSeek"},
      {"tiiuae/falcon-7b", "Falcon"}, {"mosaicml/mpt-7b", "MPT"},
      {"THUDM/glm-4-9b", "GLM"},
  };
  for (const auto& [id, what] : kOthers) {
    ASSERT_TRUE(foreign_family(id)) << id;
    EXPECT_THAT(*foreign_family(id), HasSubstr(what));
  }
  const std::pair<const char*, const char*> kRefused[] = {
      {"mistralai/Mixtral-8x7B-v0.1", "mixture of experts"},
      {"Qwen/Qwen3-30B-A3B", "mixture of experts"},
      {"deepseek-ai/DeepSeek-Coder-V2-Lite-Base", "mixture of experts"},
      {"Qwen/Qwen2-VL-7B-Instruct", "vision"},
      {"meta-llama/Llama-3.2-11B-Vision", "vision"},
      {"TheBloke/Llama-2-7B-GPTQ", "quantized (GPTQ)"},
      {"unsloth/llama-3-8b-bnb-4bit", "quantized"},
  };
  for (const auto& [id, what] : kRefused) {
    ASSERT_TRUE(unsupported_model(id)) << id;
    EXPECT_THAT(*unsupported_model(id), HasSubstr(what));
  }
}

// A name is a guess: it warns. The config.json of a folder knows.
TEST(ImportRules, FoldersSayWhatTheirModelIs) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() + "/gemma-2-9b-gptq";
  const auto import_it = [&] {
    return import_text(
        fmt::format("stage: sft\ndo_train: true\ntemplate: llama3\nmodel_name_or_path: {}\n", path));
  };
  EXPECT_EQ(fate_of(import_it(), "model_name_or_path"), "warned");  // not here
  std::filesystem::create_directory(path);
  EXPECT_EQ(fate_of(import_it(), "model_name_or_path"), "mapped");
  folder.write("gemma-2-9b-gptq/config.json", R"({"model_type": "llama"})");
  EXPECT_EQ(import_it().value("model_name_or_path"), path);
  folder.write("gemma-2-9b-gptq/config.json", R"({"model_type": "gemma2"})");
  EXPECT_THAT(reason_of(import_it(), "model_name_or_path"), HasSubstr("model_type 'gemma2'"));
  EXPECT_EQ(fate_of(import_it(), "model_name_or_path"), "refused");

  const ImportResult named = import_lf("");
  EXPECT_EQ(fate_of(named, "model_name_or_path"), "mapped");
  const ImportResult gemma =
      import_text("stage: sft\ndo_train: true\ntemplate: llama3\nmodel_name_or_path: google/gemma-2-9b\n");
  EXPECT_EQ(fate_of(gemma, "model_name_or_path"), "warned");
  EXPECT_EQ(gemma.value("model_name_or_path"), "google/gemma-2-9b");
}

TEST(ImportRules, Templates) {
  const auto of = [](const char* name, const char* stage = "sft") {
    return import_text(
        fmt::format("stage: {}\ndo_train: true\ntemplate: {}\nmodel_name_or_path: a/b\n", stage, name));
  };
  EXPECT_EQ(of("llama3").value("chat_template"), "llama3");
  EXPECT_EQ(of("qwen").value("chat_template"), "chatml");
  EXPECT_THAT(of("qwen").value("default_system"), HasSubstr("You are Qwen"));
  for (const char* name : {"qwen3_nothink", "chatml"}) {
    ASSERT_NE(of(name).find("default_system"), nullptr) << name;  // unset is Qwen's
    EXPECT_EQ(of(name).value("default_system"), "");
  }
  EXPECT_EQ(of("chatml\ndefault_system: Be brief.").value("default_system"), "Be brief.");
  EXPECT_EQ(of("qwen3").value("chat_template"), "qwen3");
  EXPECT_EQ(of("qwen3_nothink").value("chat_template"), "chatml");
  EXPECT_EQ(of("alpaca").value("chat_template"), "alpaca");
  for (const char* name : {"baichuan2", "vicuna", "gemma", "deepseek3", "default"}) {
    EXPECT_EQ(of(name).value("chat_template"), "auto") << name;
    EXPECT_EQ(fate_of(of(name), "template"), "warned") << name;
  }
  EXPECT_EQ(of("llama3", "pt").value("chat_template"), "");
}

TEST(ImportRules, LoraTargets) {
  EXPECT_EQ(import_lf("lora_target: all\n").value("lora_target"), "all");
  EXPECT_EQ(import_lf("lora_target: q_proj,v_proj\n").value("lora_target"), "q_proj,v_proj");
  EXPECT_EQ(import_lf("lora_target: [q_proj, o_proj]\n").value("lora_target"), "q_proj,o_proj");
  EXPECT_EQ(fate_of(import_lf("lora_target: q_proj,lm_head\n"), "lora_target"), "refused");
}

TEST(ImportRules, ValuesThatOctetDoesNotTakeAreRefusedWhereTheyStand) {
  const ImportResult result = import_lf("learning_rate: fast\nlora_rank: -3\n");
  EXPECT_THAT(refusals(result), testing::ElementsAre(HasSubstr("learning_rate in given.yaml:5 is 'fast'"),
                                                     HasSubstr("lora_rank in given.yaml:6 is '-3'")));
}

TEST(ImportRules, UnknownKeysAreWarnedOfAndOwnKeysTaken) {
  const ImportResult result =
      import_lf("optimizer_state: fp8\ncutof_len: 512\nunheard_of: 1\nnothing: null\n");
  EXPECT_EQ(result.value("optimizer_state"), "fp8");
  EXPECT_THAT(reason_of(result, "cutof_len"), HasSubstr("did you mean cutoff_len?"));
  EXPECT_EQ(fate_of(result, "unheard_of"), "warned");
  EXPECT_EQ(fate_of(result, "nothing"), "ignored");
}

TEST(ImportRules, ADeepSpeedFileThatIsNotThereIsGuessedFromItsName) {
  const ImportResult named = import_lf("deepspeed: examples/deepspeed/ds_z3_config.json\n");
  EXPECT_EQ(named.value("sharding_mode"), "fsdp_full");
  EXPECT_EQ(fate_of(named, "deepspeed"), "warned");
  EXPECT_EQ(fate_of(import_lf("deepspeed: my.json\n"), "deepspeed"), "refused");
}

TEST(ImportRules, DatasetInfoThatIsNotThereIsSaid) {
  const ImportResult result = import_lf("dataset: identity, alpaca_en_demo\n");
  EXPECT_TRUE(test::has_finding(result, "no-dataset-info"));
  EXPECT_EQ(result.value("dataset"), "identity,alpaca_en_demo");
  EXPECT_FALSE(result.find("dataset_dir"));
  for (const char* lines :
       {"dataset: a\ndataset_dir: ./training\n", "dataset_dir: ./training\ndataset: a\n"}) {
    const ImportResult elsewhere = import_lf(lines);
    EXPECT_EQ(elsewhere.value("dataset_dir"), "./training");
    EXPECT_EQ(fate_of(elsewhere, "dataset_dir"), "mapped");
    EXPECT_TRUE(test::has_finding(elsewhere, "no-dataset-info"));
  }
  EXPECT_FALSE(test::has_finding(import_lf("dataset: " + test::source_path("/README.md") + "\n"), "no-dataset-info"));
  EXPECT_THAT(test::mistakes_of(import_lf("dataset: org/a\ndataset_dir: ONLINE\n")), IsEmpty());
  EXPECT_EQ(fate_of(import_lf("dataset: a\ndataset_dir: REMOTE:org/b\n"), "dataset"), "refused");
}

TEST(ImportRules, DeepSpeedDetails) {
  const auto with = [](const std::string& rest) {
    return import_text("{\"zero_optimization\": {\"stage\": 2}, " + rest + "}", "ds.json");
  };
  EXPECT_THAT(refusals(with("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false}}")),
              testing::SizeIs(2));
  EXPECT_EQ(fate_of(with("\"optimizer\": {\"type\": \"Lion\"}"), "optimizer.type"), "refused");
  EXPECT_EQ(fate_of(with("\"scheduler\": {\"type\": \"OneCycle\"}"), "scheduler.type"), "refused");
  EXPECT_EQ(with("\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"cos_min_ratio\": 0.1}}")
                .value("min_lr_ratio"),
            "0.1");
  // A section that is off refuses nothing.
  EXPECT_THAT(refusals(with("\"curriculum_learning\": {\"enabled\": false, \"params\": {\"x\": 1}}")),
              IsEmpty());
  EXPECT_THAT(refusals(with("\"curriculum_learning\": {\"enabled\": true}")), testing::SizeIs(1));
  EXPECT_EQ(fate_of(with("\"sequence_parallel_size\": 1"), "sequence_parallel_size"), "ignored");
  EXPECT_EQ(fate_of(with("\"sequence_parallel_size\": 2"), "sequence_parallel_size"), "refused");
  EXPECT_EQ(import_text("{\"zero_optimization\": {\"stage\": 4}}").count(Fate::Refused), 1u);
}

TEST(ImportDetection, OwnAndUnknownFilesAreToldApart) {
  const auto error = [](const std::string& text) {
    return test::config_error_of([&] { import_text(text); });
  };
  EXPECT_THAT(error("max_steps: 3\nlr: 1e-3\n"), HasSubstr("has only keys of octet"));
  EXPECT_THAT(error("spam: 3\n"), HasSubstr("is not recognised as a configuration of LLaMA-Factory"));
  EXPECT_THAT(error("# nothing\n"), HasSubstr("is empty"));
  // A few keys of other programs do not make a file theirs.
  EXPECT_EQ(tool_of(parse_tree("dataset: a.txt\nmixed_precision: fp8\nreport_to: none\nbf16: true\n", "f")),
            nullptr);
}

constexpr const char* kShort =
    "model_name_or_path: org/llama\ndataset_name: org/d\nper_device_train_batch_size: 4\nlearning_rate: 2.0e-5\n"
    "num_train_epochs: 1\nmax_length: 512\nlr_scheduler_type: cosine\nwarmup_ratio: 0.1\noutput_dir: out/a\n";

// The Trainer's short files and octet's own share nearly all names.
TEST(ImportDetection, AShortFileOfTheTrainer) {
  const ImportResult result = import_text(std::string(kShort) + "bf16: true\n");
  EXPECT_EQ(result.tool, "Hugging Face TrainingArguments");
  EXPECT_EQ(result.value("weight_decay"), "0");
  EXPECT_EQ(result.value("adam_beta2"), "0.999");
  EXPECT_EQ(result.value("min_lr_ratio"), "0");
  EXPECT_EQ(result.value("eval_strategy"), "no");  // holds nothing out
  // A key or spelling that only octet has makes it octet's.
  for (const char* line :
       {"mixed_precision: bf16\n", "bf16: true\nnum_epochs: 2\n", "bf16: true\nfp8_recipe: block\n",
        "bf16: true\nlr: 1e-5\n", "", "learing_rate: 1e-4\n"})
    EXPECT_EQ(tool_of(parse_tree(kShort + std::string(line), "f")), nullptr) << line;
}

TEST(ImportDetection, AFileThatMayBeEithersIsOctetsWithANote) {
  const test::TemporaryFolder folder;
  const auto notes_of = [&](const std::string& text) {
    SettingsNotes notes;
    const FileSettings file = read_run_file(folder.write("a.yaml", text), notes);
    EXPECT_THAT(file.errors, IsEmpty());
    const TrainConfig config = load_train_config(file, {});
    EXPECT_EQ(config.weight_decay, 0.1);
    EXPECT_EQ(config.adam_beta2, 0.95);
    EXPECT_THAT(notes.warnings, IsEmpty());
    return notes.notes;
  };
  EXPECT_THAT(notes_of(kShort), testing::ElementsAre(HasSubstr("is read as a configuration of octet")));
  EXPECT_THAT(notes_of(kShort + std::string("mixed_precision: bf16\n")), IsEmpty());
  EXPECT_THAT(notes_of("model_preset: llama-tiny\ndataset: a.txt\nmax_steps: 3\noutput_dir: runs\n"),
              IsEmpty());
  EXPECT_EQ(import_tree(parse_tree(kShort, "a.yaml"), &hf_trainer_tool()).value("weight_decay"), "0");
}

// Too few keys for many points, but each is the Trainer's, and octet has no bf16.
TEST(ImportDetection, AMinimalFileOfTheTrainer) {
  const std::string text = "model_name_or_path: org/llama\ndataset_name: org/d\noutput_dir: out\n";
  EXPECT_EQ(import_text(text + "bf16: true\n").tool, "Hugging Face TrainingArguments");
  for (const char* line :
       {"", "mixed_precision: bf16\n", "bf16: true\ntemplate: llama3\n", "bf16: true\nspam: 3\n"})
    EXPECT_EQ(tool_of(parse_tree(text + line, "f")), nullptr) << line;
}

// Records of runs and the like: the names are there, but none of them is a setting.
TEST(ImportDetection, AFileWithoutAnySettingIsNoConfiguration) {
  const char* const record =
      "model_name_or_path: {desc: null, value: org/llama}\nstage: {desc: null, value: sft}\n"
      "template: {desc: null, value: llama3}\ndo_train: {desc: null, value: true}\n";
  EXPECT_THAT(
      test::config_error_of([&] { import_text(record); }),
      testing::AllOf(HasSubstr("none of its 8 keys"), HasSubstr("model_name_or_path.value in given.yaml:1")));
  EXPECT_EQ(test::config_error_of([&] { import_text("distributed_type: 'NO'\nnum_machines: 1\n"); }), "");
}

TEST(ImportDetection, ALeftOverKeyDoesNotMakeADeepSpeedFileAccelerates) {
  EXPECT_EQ(import_text("{\"zero_optimization\": {\"stage\": 2}, \"distributed_type\": \"DEEPSPEED\"}").tool,
            "DeepSpeed");
}

TEST(ImportDetection, EveryRowHasAReasonOrAMeaning) {
  for (const Tool* tool : tools()) {
    for (const ToolKey& row : tool->keys) {
      EXPECT_NE(row.rule == nullptr, row.cases.empty()) << tool->name << ": " << row.name;
      for (const KeyCase& one : row.cases) {
        EXPECT_TRUE(one.fate == Fate::Mapped || !one.reason.empty()) << tool->name << ": " << row.name;
        const std::string_view key = one.octet_key.empty() ? row.target() : one.octet_key;
        EXPECT_TRUE(one.fate != Fate::Mapped || key_called(train_keys().keys(), key)) << tool->name << ": " << key;
      }
    }
    for (const ToolDefault& fallback : tool->defaults)
      EXPECT_TRUE(key_called(train_keys().keys(), fallback.octet_key)) << fallback.octet_key;
  }
}

TEST(ImportRules, WeightsAndLimitsOfDatasetsMustBeNumbers) {
  const auto refused = [](const std::string& lines) {
    const ImportResult result =
        import_lf("dataset: a,b\ndataset_dir: ONLINE\nmix_strategy: interleave_under\n" + lines);
    return refusals(result).empty() ? "" : refusals(result).front();
  };
  EXPECT_EQ(refused("interleave_probs: 0.7,0.3\nmax_samples: 50\n"), "");
  for (const char* probabilities : {"'0.7,'", "['0.7', '{a: b}']", "['0.7', \"1\\n- path: c\"]", "'0.7'"}) {
    EXPECT_THAT(refused(fmt::format("interleave_probs: {}\n", probabilities)),
                HasSubstr("expected a number for each of 2 datasets"));
  }
  EXPECT_THAT(refused("max_samples: many\n"),
              HasSubstr("max_samples in item 1 of dataset (given.yaml:5) is 'many'"));
}

TEST(ImportRules, HugeNumbersStayTooLarge) {
  // A conversion that wraps would make something else of them.
  EXPECT_THAT(refusals(import_lf("save_steps: 0.5\nmax_steps: 1e300\n")), Not(IsEmpty()));
  EXPECT_EQ(whole_number(1e300), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(whole_number(-1e300), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(whole_number(0x1p63), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(whole_number(-2.9), -2);
}

}  // namespace
}  // namespace octet
