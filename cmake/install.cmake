# `make install` installs the binary, the public headers, the libraries and a CMake package (`find_package(penstock)`).
include(CMakePackageConfigHelpers)

get_property(LIBRARIES GLOBAL PROPERTY PENSTOCK_LIBRARIES)
install(TARGETS ${LIBRARIES} EXPORT penstockTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/penstock)
install(TARGETS penstock RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/penstock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT penstockTargets NAMESPACE penstock:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
configure_package_config_file(cmake/penstockConfig.cmake.in ${PROJECT_BINARY_DIR}/penstockConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/penstockConfig.cmake ${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
