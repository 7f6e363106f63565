#pragma once

namespace octet {

enum class ConsoleMode {
  Auto,   // Bar where the output is a terminal that can move its cursor, else Plain
  Bar,    // step lines scroll above a progress bar that stays at the bottom
  Plain,  // step lines only
  Quiet,  // warnings and errors only
};

}  // namespace octet
