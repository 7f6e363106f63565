// The renderer's templates for other programs, in the language of Transformers' chat templates.
#include <algorithm>

#include "base/error.h"
#include "base/json_values.h"
#include "base/text.h"
#include "data/chat/chat_template.h"
#include "data/chat/template_parts.h"

namespace octet {
namespace {

using namespace template_parts;
using nlohmann::ordered_json;

constexpr std::string_view kMark = "{#- octet: ";

// A string of the template language, which knows the escapes of JSON.
std::string string_literal(std::string_view text) {
  return ordered_json(std::string(text)).dump();
}

std::string replaced(std::string text, std::string_view from, const std::string& by) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + by.size()))
    text.replace(at, from.size(), by);
  return text;
}

// @NAME@ stands for a quoted text. The loops see `system` (none: there is no system message) and `turns`, the messages
// after it.
constexpr std::string_view kBegin = R"({%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content or '' %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set system = @SYSTEM@ %}
    {%- set turns = messages %}
{%- endif %}
)";

constexpr std::string_view kHeaders = R"({{- '<|begin_of_text|>' }}
{%- if system is not none %}
    {{- '<|start_header_id|>system<|end_header_id|>\n\n' + system | trim + '<|eot_id|>' }}
{%- endif %}
{%- for message in turns %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %})";

constexpr std::string_view kLlama31Jinja = R"({%- if not date_string is defined %}
    {%- set date_string = @DATE@ %}
{%- endif %}
{%- set given_tools = tools if tools is defined and tools else [] %}
{{- '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if given_tools %}
    {{- @ENVIRONMENT@ }}
{%- endif %}
{{- @CUTOFF@ + 'Today Date: ' + date_string + '\n\n' + (system or '') | trim + '<|eot_id|>' }}
{%- for message in turns %}
    {%- if message.role == 'tool' or message.role == 'ipython' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + message.content | tojson }}
    {%- elif message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('a message can call one tool') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function or message.tool_calls[0] %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' }}
        {{- (call.arguments if call.arguments is string else call.arguments | tojson) + '}' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
        {%- if loop.first and given_tools %}
            {{- @TOOLS@ }}
            {%- for tool in given_tools %}
                {{- tool | tojson(indent=4) + '\n\n' }}
            {%- endfor %}
        {%- endif %}
        {{- message.content | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %})";

// Both of Qwen's: @THINKS@ is true for Qwen3's.
constexpr std::string_view kChatmlJinja = R"({%- if tools %}
    {{- '<|im_start|>system\n' + (system + '\n\n' if system is not none else '') + @TOOLSBEGIN@ }}
    {%- for tool in tools %}
        {{- '\n' + tool | tojson }}
    {%- endfor %}
    {{- @TOOLSEND@ + '<|im_end|>\n' }}
{%- elif system is not none %}
    {{- '<|im_start|>system\n' + system + '<|im_end|>\n' }}
{%- endif %}
{%- set question = namespace(at=turns | length - 1) %}
{%- for message in turns %}
    {%- if message.role == 'user' and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set question.at = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in turns %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or turns[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or turns[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content or '' %}
        {%- set thought = message.reasoning_content or '' %}
        {%- if @THINKS@ and not thought and '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if @THINKS@ and loop.index0 > question.at and (loop.last or thought) %}
            {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- '\n' if content or not loop.first else '' }}
            {{- '<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
            {{- (call.arguments if call.arguments is string else call.arguments | tojson) + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if @THINKS@ and enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %})";

constexpr std::string_view kLlama2Jinja = R"({%- for message in turns %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('user and assistant must take turns') }}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {{- ' ' + message.content | trim + ' ' + @EOS@ }}
    {%- elif loop.first and system is not none %}
        {{- @BOS@ + '[INST] ' + ('<<SYS>>\n' + system + '\n<</SYS>>\n\n' + message.content) | trim + ' [/INST]' }}
    {%- else %}
        {{- @BOS@ + '[INST] ' + message.content | trim + ' [/INST]' }}
    {%- endif %}
{%- endfor %})";

// @INST@ and @END@ with the spaces around them, @ANSWER@ what comes before an answer, @TRIM@ whether answers are trimmed,
// @FIRST@ whether the system message is in the first message of the user, not in the last.
constexpr std::string_view kMistralJinja = R"({%- set place = namespace(system=0) %}
{%- for message in turns %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('user and assistant must take turns') }}
    {%- endif %}
    {%- if message.role == 'user' and not @FIRST@ %}
        {%- set place.system = loop.index0 %}
    {%- endif %}
{%- endfor %}
{{- @BOS@ }}
{%- for message in turns %}
    {%- if message.role == 'assistant' %}
        {{- @ANSWER@ + (message.content | trim if @TRIM@ else message.content) + @EOS@ }}
    {%- else %}
        {{- @INST@ + (system + '\n\n' if system is not none and loop.index0 == place.system else '') + message.content + @END@ }}
    {%- endif %}
{%- endfor %})";

constexpr std::string_view kAlpacaJinja = R"({{- @PREFIX@ }}
{%- if system is not none %}
    {{- system + '\n\n' }}
{%- endif %}
{%- for message in turns %}
    {{- '' if loop.first else '\n\n' }}
    {%- if message.role == 'assistant' %}
        {{- '### Response:\n' + message.content + @EOS@ }}
    {%- else %}
        {{- '### Instruction:\n' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '\n\n### Response:\n' }}
{%- endif %})";

constexpr std::string_view kPlainJinja = R"({{- @PREFIX@ }}
{%- set before = namespace(text=system or '') %}
{{- before.text }}
{%- for message in turns %}
    {%- if before.text and before.text == before.text.rstrip() and (not message.content or message.content == message.content.lstrip()) %}
        {{- '\n' }}
    {%- endif %}
    {{- message.content }}
    {%- set before.text = message.content %}
    {%- if message.role == 'assistant' and @EOS@ %}
        {{- @EOS@ }}
        {%- set before.text = '' %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and before.text and before.text == before.text.rstrip() %}
    {{- '\n' }}
{%- endif %})";

bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

// The style that the comment of a template says, which octet wrote.
std::optional<ChatStyle> marked_style(std::string_view jinja) {
  if (!jinja.starts_with(kMark)) return std::nullopt;
  jinja.remove_prefix(kMark.size());
  const ordered_json json = ordered_json::parse(jinja.substr(0, jinja.find("#}")), nullptr, false);
  const std::string name = text_in(json, "chat_template").value_or("");
  const std::vector<std::string> known = chat_template_names();
  if (std::ranges::find(known, name) == known.end()) return std::nullopt;
  ChatStyle style{.chat_template = parse_chat_template(name)};
  style.default_system = text_in(json, "default_system");
  return style;
}

// The system message that a template of ChatML's form writes by itself: "<|im_start|>system\nTEXT<|im_end|>".
std::string own_system(std::string_view jinja) {
  for (const std::string_view begin : {"<|im_start|>system\\n", "<|im_start|>system\n"}) {
    for (size_t at = jinja.find(begin); at != jinja.npos; at = jinja.find(begin, at + 1)) {
      const std::string_view rest = jinja.substr(at + begin.size());
      const std::string_view text = rest.substr(0, rest.find("<|im_end|>"));
      if (!text.empty() && text.size() < rest.size() && text.find_first_of("'\"{}\\") == text.npos)
        return std::string(text);
    }
  }
  return "";
}

}  // namespace

std::string ChatRenderer::jinja() const {
  const bool has_own = default_system_.has_value();
  std::string system = default_system().empty() ? "none" : string_literal(default_system());
  std::string_view form;
  switch (template_) {
    case ChatTemplate::Llama3:
      form = kHeaders;
      break;
    case ChatTemplate::Llama31:
      form = kLlama31Jinja;
      break;
    case ChatTemplate::Chatml:
    case ChatTemplate::Qwen3:
      form = kChatmlJinja;
      break;
    case ChatTemplate::Llama2:
      form = kLlama2Jinja;
      break;
    case ChatTemplate::Mistral:
    case ChatTemplate::MistralV1:
    case ChatTemplate::MistralV3:
    case ChatTemplate::MistralV3Tekken:
      form = kMistralJinja;
      break;
    case ChatTemplate::Alpaca:
      form = kAlpacaJinja;
      if (!has_own) system = string_literal(fmt::format("{}{}", kAlpacaTask, kAlpacaRequest));
      break;
    case ChatTemplate::Auto:
    case ChatTemplate::Plain:
      form = kPlainJinja;
      break;
  }
  std::string prefix;
  for (const std::string& token : prefix_) prefix += token;
  const bool is_v1 = template_ == ChatTemplate::MistralV1, is_v3 = template_ == ChatTemplate::MistralV3;
  const std::pair<std::string_view, std::string> values[] = {
      {"@SYSTEM@", system},
      {"@DATE@", string_literal(kLlama31Date)},
      {"@ENVIRONMENT@", string_literal(kLlama31Environment)},
      {"@CUTOFF@", string_literal(kLlama31Cutoff)},
      {"@TOOLS@", string_literal(kLlama31Tools)},
      {"@TOOLSBEGIN@", string_literal(kQwenToolsBegin)},
      {"@TOOLSEND@", string_literal(kQwenToolsEnd)},
      {"@THINKS@", template_ == ChatTemplate::Qwen3 ? "true" : "false"},
      {"@BOS@", string_literal(bos_)},
      {"@EOS@", string_literal(eos_)},
      {"@PREFIX@", string_literal(prefix)},
      {"@INST@", string_literal(is_v1   ? " [INST] "
                                : is_v3 ? "[INST] "
                                        : "[INST]")},
      {"@END@", string_literal(is_v1 ? " [/INST]" : "[/INST]")},
      {"@ANSWER@", string_literal(is_v1 || is_v3 ? " " : "")},
      {"@TRIM@", is_v3 ? "true" : "false"},
      {"@FIRST@", is_v1 ? "true" : "false"},
  };
  std::string text = fmt::format("{}{}", kBegin, form);
  for (const auto& [name, value] : values) {
    if (name != "@SYSTEM@") text = replaced(std::move(text), name, value);
  }
  text = replaced(std::move(text), values[0].first, values[0].second);  // last: it is the user's own text
  ordered_json mark = {{"chat_template", name_of(template_)}};
  mark["default_system"] = has_own ? ordered_json(*default_system_) : ordered_json(nullptr);
  return fmt::format("{}{} #}}\n{}", kMark, replaced(mark.dump(), "#", "\\u0023"), text);
}

std::optional<ChatStyle> recognise_chat_template(std::string_view jinja) {
  // A file of its own may hold any bytes, and what is found in it goes into JSON.
  if (!is_clean_utf8(jinja)) return std::nullopt;
  if (jinja.starts_with(kMark)) return marked_style(jinja);
  if (holds(jinja, kStartHeader) && holds(jinja, kEndOfTurn)) {
    return ChatStyle{holds(jinja, "Cutting Knowledge Date: December 2023") ? ChatTemplate::Llama31
                                                                           : ChatTemplate::Llama3};
  }
  if (holds(jinja, kImStart) && holds(jinja, kImEnd)) {
    if (holds(jinja, "<|im_sep|>")) return std::nullopt;  // Phi-4: another form
    if (holds(jinja, "reasoning_content") && holds(jinja, "</think>")) return ChatStyle{ChatTemplate::Qwen3};
    if (holds(jinja, kQwenSystem)) return ChatStyle{ChatTemplate::Chatml};
    return ChatStyle{ChatTemplate::Chatml, own_system(jinja)};
  }
  if (!holds(jinja, kInst) || holds(jinja, "[SYSTEM_PROMPT]")) return std::nullopt;
  if (holds(jinja, "<<SYS>>")) return ChatStyle{ChatTemplate::Llama2};
  if (holds(jinja, "' [INST] '") || holds(jinja, "\" [INST] \"")) return ChatStyle{ChatTemplate::MistralV1};
  if (holds(jinja, "'[INST]'") || holds(jinja, "\"[INST]\"")) return ChatStyle{ChatTemplate::MistralV3Tekken};
  if (holds(jinja, "[AVAILABLE_TOOLS]") || holds(jinja, "'[/INST]'") || holds(jinja, "\"[/INST]\""))
    return ChatStyle{ChatTemplate::MistralV3};
  return std::nullopt;
}

}  // namespace octet
