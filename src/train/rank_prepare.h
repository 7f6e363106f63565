#pragma once

#include <optional>

#include "dist/ranks.h"
#include "io/checkpoint_store.h"
#include "plan/data_loaders.h"
#include "plan/run_spec.h"

namespace octet {

// Before the stages of a run: chooses the checkpoint that it continues from, if any, and checks its folders. The first rank
// then prepares the data, which may take long. The others wait here, and find everything in its caches.
std::optional<Checkpoint> prepare_files(const CommonKeys& keys, const FilesSpec& files, Env& env,
                                        Ranks& ranks, std::optional<RunLock>& lock);

// After all that the first rank has to prepare: lets the others begin, and checks that all ranks have planned the same
// run and that its files will fit.
void check_prepared(const RunSpec& run, Env& env, Ranks& ranks);

// RankError that names the odd ranks and their hosts if not all have the same data and tokenizer. `host`: of this rank.
void compare_data(Ranks& ranks, const DataHashes& mine, const std::string& host);

}  // namespace octet
