#include "penstock/server/http/exchange.h"

#include <algorithm>

namespace penstock::server {
namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = Lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

std::string_view HttpHead::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (std::ranges::equal(key, name, [](char a, char b) { return Lower(a) == Lower(b); })) return value;
  }
  return {};
}

std::string HttpHead::Segment(int index) const {
  std::string_view rest = path;
  for (int i = -1; i < index; ++i) {
    const size_t slash = rest.find('/');
    if (slash == std::string_view::npos) return {};
    rest.remove_prefix(slash + 1);
  }
  return std::string(rest.substr(0, rest.find('/')));
}

std::string HttpHead::Parameter(std::string_view name) const {
  std::string_view rest = query;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('&'), rest.size());
    const std::string_view pair = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const size_t equals = std::min(pair.find('='), pair.size());
    if (DecodePercent(pair.substr(0, equals)) != name) continue;
    return DecodePercent(pair.substr(std::min(equals + 1, pair.size())));
  }
  return {};
}

std::string DecodePercent(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && text.size() - i > 2 ? HexDigit(text[i + 1]) : -1;
    const int low = high >= 0 ? HexDigit(text[i + 2]) : -1;
    if (low < 0) {
      decoded += text[i];
      continue;
    }
    decoded += static_cast<char>(high << 4 | low);
    i += 2;
  }
  return decoded;
}

}  // namespace penstock::server
