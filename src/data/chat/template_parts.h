#pragma once

#include <cstdint>
#include <string_view>

#include "data/records/example_reader.h"

// The words of the formats, shared by the renderer of conversations and the Jinja templates.

namespace octet::template_parts {

inline constexpr const char* kBeginOfText = "<|begin_of_text|>";
inline constexpr const char* kStartHeader = "<|start_header_id|>";
inline constexpr const char* kEndHeader = "<|end_header_id|>";
inline constexpr const char* kEndOfTurn = "<|eot_id|>";
inline constexpr const char* kImStart = "<|im_start|>";
inline constexpr const char* kImEnd = "<|im_end|>";
inline constexpr const char* kInst = "[INST]";
inline constexpr const char* kEndInst = "[/INST]";

inline constexpr std::string_view kQwenSystem =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
// Around the list of tools, in the system message of Qwen's templates.
inline constexpr std::string_view kQwenToolsBegin =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>";
inline constexpr std::string_view kQwenToolsEnd =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
    "<args-json-object>}\n</tool_call>";

inline constexpr std::string_view kLlama31Environment = "Environment: ipython\n";
inline constexpr std::string_view kLlama31Cutoff = "Cutting Knowledge Date: December 2023\n";
// Llama 3.1's template uses this date unless it is given another.
inline constexpr std::string_view kLlama31Date = "26 Jul 2024";
// Before the list of tools, in the first user message.
inline constexpr std::string_view kLlama31Tools =
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    "answers the given prompt.\n\nRespond in the format {\"name\": function name, \"parameters\": dictionary of "
    "argument name and its value}.Do not use variables.\n\n";

inline constexpr std::string_view kAlpacaTask = "Below is an instruction that describes a task";
inline constexpr std::string_view kAlpacaInput = ", paired with an input that provides further context";
inline constexpr std::string_view kAlpacaRequest =
    ". Write a response that appropriately completes the request.";

constexpr bool is_chatml_template(ChatTemplate chat_template) {
  return chat_template == ChatTemplate::Chatml || chat_template == ChatTemplate::Qwen3;
}
constexpr bool is_inst_template(ChatTemplate chat_template) {
  return chat_template == ChatTemplate::Llama2 || chat_template == ChatTemplate::MistralV1 ||
         chat_template == ChatTemplate::MistralV3 || chat_template == ChatTemplate::MistralV3Tekken;
}

// Python's white space, which the templates' `trim` removes.
bool is_space(uint32_t point);

}  // namespace octet::template_parts
