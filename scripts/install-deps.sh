#!/bin/sh
# Installs the Debian 12 packages that Penstock is built, tested and demonstrated with.
#
# Usage: scripts/install-deps.sh [--check | --all]
#   --check  also installs what `make check` needs: clang, clang-format, clang-tidy, lld, Python's venv and headers, and a
#            cross compiler and an emulator for the test of the NEON kernels (about 700 MB more)
#   --all    also installs these, the fuzzers' runtime, and Chromium for the test of the server's page (about 500 MB more)
#
# Runs as root or through sudo. If nothing is missing, it says so and does nothing.
set -eu

build="g++ cmake ninja-build make git ca-certificates pkg-config ccache python3"
libraries="libboost1.81-dev libboost-json1.81-dev libcli11-dev libspdlog-dev libfmt-dev libabsl-dev liburing-dev \
libxxhash-dev libutf8proc-dev libcereal-dev"
ranks="libopenmpi-dev openmpi-bin"
tests="libboost-context1.81-dev libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev python3-numpy"
check="clang-14 clang clang-format clang-tidy lld python3-venv python3-dev"
[ "$(uname -m)" = aarch64 ] || check="$check g++-aarch64-linux-gnu qemu-user-static"
all="libclang-rt-14-dev chromium"

say() { printf 'install-deps: %s\n' "$*"; }
fail() {
  printf 'install-deps: error: %s\n' "$*" >&2
  exit 1
}

packages="$build $libraries $ranks $tests"
case "${1:-}" in
  "") ;;
  --check) packages="$packages $check" ;;
  --all) packages="$packages $check $all" ;;
  -h | --help)
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
  *)
    printf 'install-deps: unknown argument %s (expected nothing, --check or --all)\n' "$1" >&2
    exit 2
    ;;
esac
if [ $# -gt 1 ]; then
  printf 'install-deps: expected at most one argument\n' >&2
  exit 2
fi

for tool in dpkg-query apt-get; do
  command -v "$tool" >/dev/null 2>&1 ||
    fail "$tool is missing: this script is for Debian 12; elsewhere install by hand: $packages"
done

# Succeeds if the package $1 is installed.
installed() {
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null || true)" = installed ]
}

missing=""
for package in $packages; do
  installed "$package" || missing="$missing $package"
done
if [ -z "$missing" ]; then
  say "nothing is missing"
  exit 0
fi

# Debian can install only one version of Boost's headers, and Boost.JSON is new in 1.75.
if ! installed libboost1.81-dev && installed libboost1.74-dev; then
  fail "libboost1.74-dev is installed and conflicts with libboost1.81-dev, which Penstock needs;" \
    "remove it first (apt-get remove libboost1.74-dev) or build in a container"
fi

if [ "$(id -u)" -eq 0 ]; then
  sudo=""
elif command -v sudo >/dev/null 2>&1; then
  sudo="sudo"
else
  fail "not root and sudo is not installed; run as root: apt-get install --no-install-recommends$missing"
fi

# Runs apt-get as root without questions. sudo drops the environment, so env sets the variable.
apt() {
  # shellcheck disable=SC2086  # unquoted, so that an empty $sudo disappears
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" </dev/null
}

say "installing:$missing"
apt update || fail "apt-get update failed; is the network reachable?"
# shellcheck disable=SC2086  # unquoted, because it is a list of words
apt install --no-install-recommends $missing ||
  fail "apt-get could not install the packages; this script knows Debian 12 (bookworm)"
for package in $missing; do
  installed "$package" || fail "$package is still missing after the installation"
done
say "done"
