#include "report/html_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <type_traits>

#include "base/error.h"
#include "base/sha.h"
#include "report/page_files.h"
#include "report/text.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostPoints = 4000;  // of a series; more are thinned

const char* tone_class(Tone tone) {
  switch (tone) {
    case Tone::Plain:
      return "plain";
    case Tone::Good:
      return "good";
    case Tone::Warning:
      return "warning";
    case Tone::Bad:
      return "bad";
    case Tone::Muted:
      return "muted";
  }
  return "plain";
}

// Seven digits are more than a chart shows, and keep the file small. JSON has no NaN: it is null.
Json number(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == std::trunc(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return std::strtod(fmt::format("{:.7g}", value).c_str(), nullptr);
}

// Values that are not numbers sort behind all that are.
double sort_value(double value) {
  constexpr double kMost = std::numeric_limits<double>::max();
  return std::isnan(value) ? kMost : std::clamp(value, -kMost, kMost);
}

// A JSON text that may stand inside a script element: none of its bytes can end the element or begin a comment.
std::string script_json(const Json& value) {
  std::string result;
  for (const char c : value.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    if (c == '<' || c == '>' || c == '&') {
      result += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      result += c;
    }
  }
  return result;
}

std::string base64_of_hex(std::string_view hex) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto nibble = [](char c) { return static_cast<uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10); };
  std::string result;
  for (size_t i = 0; i < hex.size(); i += 6) {  // three bytes
    const std::string_view group = hex.substr(i, 6);
    uint32_t bits = 0;
    for (size_t j = 0; j < 6; ++j) bits = bits << 4 | (j < group.size() ? nibble(group[j]) : 0U);
    for (size_t j = 0; j < 4; ++j)
      result += 6 * j < 4 * group.size() ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
  }
  return result;
}

std::string sha256_source(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return fmt::format("'sha256-{}'", base64_of_hex(hash.hex()));
}

// At most kMostPoints: of each stretch the least, the greatest and the first point that is a gap.
std::vector<HtmlPoint> thinned(const std::vector<HtmlPoint>& points) {
  if (points.size() <= kMostPoints) return points;
  std::vector<HtmlPoint> result;
  const auto is_gap = [](const HtmlPoint& point) { return !std::isfinite(point.y); };
  const size_t stretches = kMostPoints / (std::ranges::any_of(points, is_gap) ? 3 : 2);
  for (size_t i = 0; i < stretches; ++i) {
    const size_t begin = i * points.size() / stretches, end = (i + 1) * points.size() / stretches;
    std::optional<size_t> low, high, gap;
    for (size_t j = begin; j < end; ++j) {
      if (is_gap(points[j])) {
        if (!gap) gap = j;
        continue;
      }
      if (!low || points[j].y < points[*low].y) low = j;
      if (!high || points[j].y > points[*high].y) high = j;
    }
    std::set<size_t> kept;
    for (const std::optional<size_t>& one : {low, high, gap}) {
      if (one) kept.insert(*one);
    }
    for (const size_t j : kept) result.push_back(points[j]);
  }
  return result;
}

Json series_json(const HtmlSeries& series) {
  Json x = Json::array(), y = Json::array(), low = Json::array(), high = Json::array();
  bool has_band = false;
  for (const HtmlPoint& point : thinned(series.points)) {
    x.push_back(number(point.x));
    y.push_back(number(point.y));
    low.push_back(number(point.low.value_or(point.y)));
    high.push_back(number(point.high.value_or(point.y)));
    has_band = has_band || point.low.has_value();
  }
  Json json = {{"name", terminal_safe(series.name)},
               {"colour", series.colour},
               {"dots", series.dots},
               {"smooth", series.smooth},
               {"dashed", series.dashed},
               {"x", std::move(x)},
               {"y", std::move(y)}};
  if (has_band) {
    json["low"] = std::move(low);
    json["high"] = std::move(high);
  }
  return json;
}

Json chart_json(const HtmlChart& chart) {
  Json series = Json::array();
  for (const HtmlSeries& one : chart.series) series.push_back(series_json(one));
  return {{"title", terminal_safe(chart.title)},
          {"xLabel", terminal_safe(chart.x_label)},
          {"yLabel", terminal_safe(chart.y_label)},
          {"smoothing", chart.smoothing},
          {"log", chart.log_scale},
          {"fromZero", chart.from_zero},
          {"series", std::move(series)}};
}

Json parallel_json(const HtmlParallel& parallel) {
  Json axes = Json::array(), lines = Json::array();
  for (const HtmlParallelAxis& axis : parallel.axes)
    axes.push_back({{"name", terminal_safe(axis.name)}, {"log", axis.log_scale}});
  for (const HtmlParallelLine& line : parallel.lines) {
    require(line.values.size() == parallel.axes.size(),
            "[page] a line has {} values, expected {}, one per axis", line.values.size(),
            parallel.axes.size());
    Json values = Json::array();
    for (const HtmlValue& value : line.values) {
      if (const auto* word = std::get_if<std::string>(&value)) {
        values.push_back(terminal_safe(*word));
      } else {
        values.push_back(std::holds_alternative<double>(value) ? number(std::get<double>(value)) : Json());
      }
    }
    lines.push_back({{"name", terminal_safe(line.name)}, {"values", std::move(values)}});
  }
  return {{"title", terminal_safe(parallel.title)},
          {"colourAxis",
           parallel.colour_axis < 0 ? static_cast<int>(parallel.axes.size()) - 1 : parallel.colour_axis},
          {"lowerIsBetter", parallel.lower_is_better},
          {"axes", std::move(axes)},
          {"lines", std::move(lines)}};
}

Json bars_json(const HtmlBars& bars) {
  Json list = Json::array();
  for (const HtmlBar& bar : bars.bars) {
    list.push_back({{"name", terminal_safe(bar.name)},
                    {"value", number(bar.value)},
                    {"text", terminal_safe(bar.text)},
                    {"colour", bar.colour}});
  }
  return {{"title", terminal_safe(bars.title)}, {"bars", std::move(list)}};
}

// The parts of a page in turn: what is text goes into the HTML, what is drawn into the data that the script reads.
class Writer {
 public:
  std::string html;
  Json drawn = Json::object();  // by the id of the element that is drawn into

  void operator()(const HtmlText& part) {
    std::string_view rest = part.text;
    while (!rest.empty()) {
      const size_t end = rest.find("\n\n");
      html +=
          fmt::format("<p class=\"{}\">{}</p>\n", tone_class(part.tone), html_escaped(rest.substr(0, end)));
      rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 2);
    }
  }
  void operator()(const HtmlVerdict& part) {
    html += fmt::format("<p class=\"verdict {}\">{}</p>\n", tone_class(part.tone), html_escaped(part.text));
  }
  void operator()(const HtmlFigures& part) {
    html += "<div class=\"figures\">\n";
    for (const HtmlFigure& figure : part.figures) {
      html += fmt::format(
          "<div class=\"figure {}\"><span class=\"label\">{}</span><span class=\"value\">{}</span>",
          tone_class(figure.tone), html_escaped(figure.label), html_escaped(figure.value));
      if (!figure.note.empty())
        html += fmt::format("<span class=\"note\">{}</span>", html_escaped(figure.note));
      html += "</div>\n";
    }
    html += "</div>\n";
  }
  void operator()(const HtmlTable& part) {
    html += "<div class=\"card table\">";
    title(part.title);
    html += "<div class=\"scroll\"><table><thead><tr>";
    for (const Table::Column& column : part.columns)
      html += fmt::format("<th scope=\"col\"{}>{}</th>", alignment(column), html_escaped(column.title));
    html += "</tr></thead>\n<tbody>\n";
    for (const std::vector<HtmlCell>& row : part.rows) {
      require(row.size() == part.columns.size(), "[page] a row has {} cells, expected {}, one per column",
              row.size(), part.columns.size());
      html += "<tr>";
      for (size_t i = 0; i < row.size(); ++i) {
        html += fmt::format("<td{}", alignment(part.columns[i], row[i].tone));
        if (row[i].sort) html += fmt::format(" data-sort=\"{:.17g}\"", sort_value(*row[i].sort));
        html += fmt::format(">{}</td>", html_escaped(row[i].text));
      }
      html += "</tr>\n";
    }
    html += "</tbody></table></div>";
    note(part.note);
    html += "</div>\n";
  }
  void operator()(const HtmlBars& part) { draw("bars", part.title, part.note, bars_json(part)); }
  void operator()(const HtmlChart& part) { draw("chart", part.title, part.note, chart_json(part)); }
  void operator()(const HtmlParallel& part) { draw("parallel", part.title, part.note, parallel_json(part)); }
  void operator()(const HtmlQuotes& part) {
    html += "<div class=\"quotes\">\n";
    for (const HtmlQuote& quote : part.quotes) {
      html +=
          fmt::format("<figure class=\"card quote\"><figcaption{}>{}</figcaption><pre>{}</pre></figure>\n",
                      quote.colour < 0 ? "" : fmt::format(" data-colour=\"{}\"", quote.colour),
                      html_escaped(quote.label), html_escaped(quote.text));
    }
    html += "</div>\n";
  }

 private:
  static std::string alignment(const Table::Column& column, Tone tone = Tone::Plain) {
    std::string classes = column.align == Align::Right ? "right" : "";
    if (tone != Tone::Plain) classes += fmt::format("{}{}", classes.empty() ? "" : " ", tone_class(tone));
    return classes.empty() ? "" : fmt::format(" class=\"{}\"", classes);
  }
  void title(const std::string& text) {
    if (!text.empty()) html += fmt::format("<h3>{}</h3>", html_escaped(text));
  }
  void note(const std::string& text) {
    if (!text.empty()) html += fmt::format("<p class=\"note\">{}</p>", html_escaped(text));
  }
  void draw(const char* kind, const std::string& heading, const std::string& below, Json data) {
    const std::string id = fmt::format("drawn-{}", drawn.size());
    html += fmt::format("<div class=\"card {}\">", kind);
    title(heading);
    html += fmt::format("<div id=\"{}\" class=\"drawing\"></div>", id);
    note(below);
    html += "</div>\n";
    data["kind"] = kind;
    drawn[id] = std::move(data);
  }
};

// Charts and bars that follow each other stand side by side where the window is wide enough.
bool is_drawing(const HtmlPart& part) {
  return std::holds_alternative<HtmlChart>(part) || std::holds_alternative<HtmlBars>(part);
}

void write_section(Writer& writer, const HtmlSection& section) {
  writer.html += "<section>\n";
  if (!section.heading.empty()) writer.html += fmt::format("<h2>{}</h2>\n", html_escaped(section.heading));
  bool in_grid = false;
  for (const HtmlPart& part : section.parts) {
    if (is_drawing(part) != in_grid) {
      writer.html += in_grid ? "</div>\n" : "<div class=\"grid\">\n";
      in_grid = !in_grid;
    }
    std::visit(writer, part);
  }
  if (in_grid) writer.html += "</div>\n";
  writer.html += "</section>\n";
}

}  // namespace

std::string html_escaped(std::string_view text) {
  constexpr std::string_view kSpecial = "&<>\"'";
  constexpr std::string_view kEscapes[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string result;
  for (const char c : terminal_safe(text)) {
    const size_t at = kSpecial.find(c);
    result += at == kSpecial.npos ? std::string_view(&c, 1) : kEscapes[at];
  }
  return result;
}

std::string html_page(const HtmlPage& page) {
  Writer writer;
  for (const HtmlSection& section : page.sections) write_section(writer, section);
  // Only the script and the style below may run or apply, and no request leaves the page, whatever a name holds.
  const std::string script = fmt::format("(() => {{\n\"use strict\";\n{}}})();\n", kPageScript);
  const std::string policy =
      fmt::format("default-src 'none'; script-src {}; style-src {}; base-uri 'none'; form-action 'none'",
                  sha256_source(script), sha256_source(kPageStyle));
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<header><div><h1>{}</h1>",
      policy, html_escaped(page.title), kPageStyle, html_escaped(page.title));
  if (!page.subtitle.empty())
    text += fmt::format("<p class=\"subtitle\">{}</p>", html_escaped(page.subtitle));
  text +=
      "</div><button id=\"theme\" type=\"button\" aria-label=\"Switch between dark and light\" hidden></button>"
      "</header>\n<noscript><p class=\"warning\">The charts of this page need JavaScript. The tables do "
      "not.</p></noscript>\n<main>\n";
  text += writer.html;
  text += "</main>\n";
  if (!page.footer.empty()) text += fmt::format("<footer>{}</footer>\n", html_escaped(page.footer));
  text += fmt::format(
      "<script type=\"application/json\" id=\"page-data\">{}</script>\n<script>{}</script>\n</body>\n</html>\n",
      script_json(writer.drawn), script);
  return text;
}

}  // namespace octet
