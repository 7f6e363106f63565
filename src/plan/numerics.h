#pragma once

#include <string>

#include "config/step_keys.h"
#include "model/transformer.h"

// Which number formats a run uses on a device, and what that is called.

namespace octet {

// What the keys ask for.
Numerics numerics_from(const StepKeys& keys, const Device& device);

// The keys with delayed in place of an fp8_recipe mxfp8 that the GPU has no kernels for, which is said loudly. They stay
// as they are with fp8_emulation, and on the CPU, which emulates every recipe.
StepKeys keys_with_native_recipe(StepKeys keys, Device& device);

// Why a run that asks for FP8 cannot use it at all; "" where any product of any Linear runs in FP8.
std::string no_fp8_reason(const Transformer& transformer);

// "BF16", "FP8", "FP8 (emulated)", ...: as the console and the metrics name it. "FP8" alone means that every FP8 product
// runs on FP8 tensor cores. Warns of every product that does not on a GPU.
std::string precision_label(const Transformer& transformer, Device& device);

}  // namespace octet
