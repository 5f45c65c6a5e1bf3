# `make install` installs the binary with its manual page and completions, the public headers, the libraries and a CMake
# package (`find_package(penstock)`).
include(CMakePackageConfigHelpers)

get_property(LIBRARIES GLOBAL PROPERTY PENSTOCK_LIBRARIES)
install(TARGETS ${LIBRARIES} EXPORT penstockTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/penstock)
install(TARGETS penstock RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# Installs what the program prints when it is called with the words that follow FILE.
function(penstock_install_output DIR FILE)
  string(JOIN " " WORDS ${ARGN})
  install(CODE "set(DIR \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${DIR}\")
    file(MAKE_DIRECTORY \"\${DIR}\")
    execute_process(COMMAND \"$<TARGET_FILE:penstock>\" ${WORDS} OUTPUT_FILE \"\${DIR}/${FILE}\" COMMAND_ERROR_IS_FATAL ANY)")
endfunction()
penstock_install_output(share/man/man1 penstock.1 man)
penstock_install_output(share/bash-completion/completions penstock completion bash)
penstock_install_output(share/zsh/site-functions _penstock completion zsh)
penstock_install_output(share/fish/vendor_completions.d penstock.fish completion fish)
install(DIRECTORY include/penstock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT penstockTargets NAMESPACE penstock:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
configure_package_config_file(cmake/penstockConfig.cmake.in ${PROJECT_BINARY_DIR}/penstockConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/penstockConfig.cmake ${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
