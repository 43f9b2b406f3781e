#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace godwit::cli {

// True when stdout is a terminal that may be coloured (NO_COLOR is not set, TERM is not "dumb").
bool UseColour();

// A job's state, coloured for a terminal when `colour`.
std::string ColouredState(const std::string& state, bool colour);

// Columns of text for people. The first row holds the titles. The last column is not padded.
class Table {
 public:
  explicit Table(std::vector<std::string> titles) { rows_.push_back(std::move(titles)); }
  // REQUIRES: as many cells as titles.
  void Row(std::vector<std::string> cells);
  // Lines with an end each; widths count characters of UTF-8, not colour codes.
  std::string Render() const;
  size_t rows() const { return rows_.size() - 1; }

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "job j-1 (gpt)" style lists of name and value, values in one column.
std::string RenderFields(const std::vector<std::pair<std::string, std::string>>& fields);

}  // namespace godwit::cli
