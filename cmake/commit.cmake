# Writes OUT, a C++ header that names the commit of the checkout SOURCE_DIR. Changes the file only when the commit is a
# new one, so that nothing is compiled in vain. Run at each build: cmake -DSOURCE_DIR=... -DOUT=... -P commit.cmake
execute_process(COMMAND git -C ${SOURCE_DIR} rev-parse --short=12 HEAD
                OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(CONFIGURE OUTPUT ${OUT} CONTENT "inline constexpr char kCommit[] = \"${COMMIT}\";\n")
