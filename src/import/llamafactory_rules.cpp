#include "import/llamafactory_rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "config/config.h"
#include "import/rules.h"

namespace octet {
namespace {

bool is_pretraining(const Importer& importer) {
  return plain_word(importer.main_tree().text("stage")) == "pt";
}

bool takes_template(const std::string& name) {
  const KeySetting setting{.name = "chat_template", .values = {name}, .place = "import"};
  std::vector<std::string> errors;
  resolve_settings(train_keys().keys(), std::span(&setting, 1), errors);
  return errors.empty();
}

}  // namespace

void stage_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string stage = plain_word(leaf.text);
  if (stage == "sft" || leaf.is_null()) {
    importer.derive(leaf, "supervised fine-tuning: the loss is taken on the answers");
  } else if (stage == "pt") {
    importer.derive(leaf, "pretraining: the loss is taken on all of the text");
  } else {
    importer.refuse(leaf,
                    "octet pretrains (pt) and fine-tunes (sft); it has no preference or reward training");
    if (importer.tree().is_on("fp8")) {
      importer.find("fp8-only-in-pt-and-sft", leaf,
                    "LLaMA-Factory sets FP8 up for pt and sft alone: in this stage fp8 does nothing",
                    "does not have this stage");
    }
  }
}

void template_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string name = plain_word(leaf.text);
  if (leaf.is_null()) {
    importer.ignore(leaf, "null: the template of the tokenizer");
  } else if (is_pretraining(importer)) {
    importer.ignore(leaf, "pretraining has no conversations");
  } else if (name == "qwen" || name == "qwen2" || name == "qwen2_5") {
    importer.map(leaf, "chat_template", "chatml");
    if (!importer.is_set("default_system")) {
      importer.set("default_system", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
                   "the template qwen has it", leaf.place);
    }
  } else if (name == "qwen3_nothink" || name == "chatml") {
    importer.map(leaf, "chat_template", "chatml");
    set_no_system(importer, leaf);
  } else if (name != "default" && takes_template(name)) {  // octet's default is the tokenizer's, not this one
    importer.map(leaf, "chat_template", name);
  } else {
    importer.set("chat_template", "auto", leaf.name, leaf.place);
    importer.warn(leaf,
                  "octet does not have this template and takes the one of the tokenizer; compare with 'octet "
                  "prepare --preview', or set chat_template");
  }
}

void adapter_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::vector<std::string> adapters = leaf.list();
  if (adapters.empty()) {
    importer.ignore(leaf, "null: new adapters");
  } else if (adapters.size() > 1) {
    importer.refuse(leaf, "several adapters are merged there; merge them with 'octet export --merge' first");
  } else if (importer.tree().is_on("create_new_adapter")) {
    importer.refuse(
        leaf,
        "with create_new_adapter it is merged first; use 'octet export --merge', then train on the result");
  } else {
    importer.map(leaf, "adapter_name_or_path", adapters.front());
  }
}

void lf_packing_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null()) {
    importer.derive(leaf, "null: on for pretraining, off for fine-tuning");
  } else if (leaf.is_off()) {
    importer.map(leaf, "packing", "none");
  } else if (is_pretraining(importer)) {
    importer.map(leaf, "packing", "stream");
  } else {
    importer.map(leaf, "packing", "best_fit");
    if (!importer.tree().is_on("neat_packing")) {
      importer.find("packing-mixes-documents", leaf,
                    "without neat_packing, examples in one sequence see each other", "keeps examples apart");
    }
  }
}

void lf_recompute_rule(Importer& importer, const TreeLeaf& leaf) {
  importer.find("gradient-checkpointing-unused", leaf,
                "LLaMA-Factory recomputes always, whatever gradient_checkpointing says; only "
                "disable_gradient_checkpointing changes that",
                "recomputes only as much as the memory needs");
  importer.ignore(leaf, "LLaMA-Factory does not use it; octet recomputes what the memory needs");
}

void find_dropped_fp8_recipe(Importer& importer, const TreeLeaf& leaf, std::string_view backend) {
  importer.find(
      "fp8-backend", leaf,
      fmt::format("LLaMA-Factory builds an FP8 recipe {} and drops it; what runs is BF16, or torchao's "
                  "default without torch.compile, which is slower than BF16",
                  backend),
      "runs the matrix products of the layers in FP8; 'octet plan' lists them");
}

void lf_fp8_backend_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string backend = plain_word(leaf.text);
  importer.ignore(leaf, "not needed: octet has its own FP8 kernels");
  if (!importer.tree().is_on("fp8")) return;
  if (backend == "te") {
    importer.set("fp8_recipe", "delayed", "fp8_backend te: HYBRID, history 16, max", leaf.place);
  } else if (leaf.is_null() || backend == "auto" || backend == "torchao") {
    find_dropped_fp8_recipe(importer, leaf, "for this backend");
  }
}

void all_gather_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_off(leaf)) return;
  importer.ignore(leaf, "octet gathers weights in the form that it needs");
  if (!importer.tree().is_on("fp8")) {
    importer.find("all-gather-without-fp8", leaf,
                  "without fp8: true, LLaMA-Factory logs that FP8 is on but trains in BF16",
                  "does the same as set: mixed_precision decides");
  } else if (importer.tree().text("fsdp_config.fsdp_version") != "2") {
    importer.find("float8-all-gather", leaf,
                  "only FSDP2 with one scale per tensor gathers FP8 weights; elsewhere it does nothing",
                  "needs no setting for it");
  }
}

void pure_bf16_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_off(leaf)) return;
  importer.map(leaf, "master_weights", "stochastic",
               "no fp32 copy; octet rounds updates stochastically, so that small ones count. More accurate: "
               "compact, with half a byte more per weight");
  if (!importer.is_set("mixed_precision")) importer.set("mixed_precision", "bf16", leaf.name, leaf.place);
}

}  // namespace octet
