#pragma once

#include <string>
#include <string_view>

#include "generate/chat_session.h"

namespace octet {

// Text for stdout, at once. Error if it cannot be written.
void write_out(std::string_view text);

// Talks over stdin and stdout until the input ends. On a terminal: a prompt, answers as they are made, Ctrl-C stops an
// answer. Otherwise each line is a message, and the answers are printed one after another. Lines that begin with a slash
// are commands (/help lists them). Returns the exit code.
int chat_on_console(ChatSession& session, const std::string& greeting);

// One question; prints the answer, piece by piece with `stream`.
int ask_once(ChatSession& session, const std::string& user, bool stream);

}  // namespace octet
