#pragma once

#include <termios.h>

#include <string>

namespace octet {

// The terminal as a page that is drawn again and again, without scrolling and without flicker. The destructor gives the
// terminal back as it was; so does a signal that ends the program.
class LiveScreen {
 public:
  LiveScreen();
  ~LiveScreen();
  LiveScreen(const LiveScreen&) = delete;
  LiveScreen& operator=(const LiveScreen&) = delete;

  struct Size {
    int columns = 80, rows = 24;
  };
  static Size size();
  // Shows the text in place of the one before. Its lines must fit the width; it has at most as many as the screen.
  static void show(const std::string& text);

  enum class Event { Time, Resize, Quit };
  // Waits for so many seconds, a change of size, or a key that quits (q, Ctrl-C, Ctrl-D, Escape) or a signal.
  Event wait(double seconds);

 private:
  termios before_{};
  bool raw_ = false;
};

}  // namespace octet
