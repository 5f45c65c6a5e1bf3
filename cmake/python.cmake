# Finds nanobind, and sets PENSTOCK_HAS_PYTHON if the build includes the Python extension. nanobind is looked for in the
# environment of the Python that runs the build, and in build/python-env (scripts/check.py).
set(PENSTOCK_PYTHON AUTO CACHE STRING "Build the Python extension: AUTO (if nanobind is found), ON or OFF")
set_property(CACHE PENSTOCK_PYTHON PROPERTY STRINGS AUTO ON OFF)
set(PENSTOCK_HAS_PYTHON OFF)
# Debug builds are not position independent (penstock_flags).
if(PENSTOCK_PYTHON AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  if(NOT Python_EXECUTABLE AND EXISTS ${PROJECT_SOURCE_DIR}/build/python-env/bin/python)
    set(Python_EXECUTABLE ${PROJECT_SOURCE_DIR}/build/python-env/bin/python)
  endif()
  find_package(Python 3.11 QUIET COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
  if(Python_FOUND)
    execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
                    OUTPUT_VARIABLE NANOBIND_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    find_package(nanobind CONFIG QUIET PATHS ${NANOBIND_DIR} NO_DEFAULT_PATH)
  endif()
  if(nanobind_FOUND)
    set(PENSTOCK_HAS_PYTHON ON)
  elseif(NOT PENSTOCK_PYTHON STREQUAL "AUTO")
    message(FATAL_ERROR "PENSTOCK_PYTHON=${PENSTOCK_PYTHON}: no nanobind or no headers of Python 3.11 or later found")
  endif()
endif()
