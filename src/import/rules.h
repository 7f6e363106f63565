#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "import/importer.h"

namespace octet {

// Rules for values that several tools have under the same or another name. Each gives exactly one verdict.

void model_rule(Importer&, const TreeLeaf&);         // model_name_or_path; families that octet does not have
void output_dir_rule(Importer&, const TreeLeaf&);    // the folder of one run: output_dir and run_name
void run_name_rule(Importer&, const TreeLeaf&);      // run_name, with characters that folders may have
void bf16_rule(Importer&, const TreeLeaf&);          // mixed_precision bf16, unless FP8 is asked for
void fp16_rule(Importer&, const TreeLeaf&);          // mixed_precision bf16, with a warning
void optimizer_rule(Importer&, const TreeLeaf&);     // adamw_torch, adamw_8bit, paged_adamw_8bit...
void schedule_rule(Importer&, const TreeLeaf&);      // cosine, linear, constant_with_warmup...
void warmup_steps_rule(Importer&, const TreeLeaf&);  // a value below 1 is a ratio
void max_steps_rule(Importer&, const TreeLeaf&);     // -1 and 0: the epochs decide
void interval_rule(Importer&, const TreeLeaf&);  // logging_steps, eval_steps, save_steps: below 1 is a share
void held_out_rule(Importer&, const TreeLeaf&);  // eval_split; from 1 on it is a number of examples
void report_to_rule(Importer&, const TreeLeaf&);
void recompute_rule(Importer&, const TreeLeaf&);       // a bool: gradient_checkpointing auto or none
void quantized_base_rule(Importer&, const TreeLeaf&);  // load_in_4bit and the like: refused
void fsdp_rule(Importer&, const TreeLeaf&);            // full_shard auto_wrap, SHARD_GRAD_OP, 1, true...
void deepspeed_file_rule(Importer&, const TreeLeaf&);  // reads the file and includes it
// A map with DeepSpeed's settings inside the file, for rows such as "deepspeed.**".
void deepspeed_section_rule(Importer&, const TreeLeaf&);
void offload_rule(Importer&, const TreeLeaf&);  // weights or moments on the CPU: a warning and a finding
void parallel_size_rule(Importer&,
                        const TreeLeaf&);     // ranks that split a layer or a sequence: above 1 is refused
void betas_rule(Importer&, const TreeLeaf&);  // [adam_beta1, adam_beta2]
void lora_target_rule(Importer&, const TreeLeaf&);

// octet's chatml has Qwen's system message. For a template without one: default_system "", unless one is given.
void set_no_system(Importer&, const TreeLeaf& leaf);

// Text in lower case, without spaces around it.
std::string plain_word(std::string_view text);

// Why octet cannot train the model of this hub id (quantized, experts, images), or nothing if the id does not tell.
std::optional<std::string> unsupported_model(std::string_view id);
// A family that octet does not have, if the id sounds like one.
std::optional<std::string> foreign_family(std::string_view id);

// Sets output_dir and run_name from the folder of a run.
void set_run_folder(Importer&, const TreeLeaf& leaf, std::string folder);

// A file that another file names: as given, or else next to the file that names it. "" if there is none.
std::string named_file(const Importer&, const std::string& path);

// DeepSpeed's stage as a sharding_mode, or nothing.
std::optional<std::string> sharding_of_zero_stage(std::string_view stage);

}  // namespace octet
