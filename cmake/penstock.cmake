# One helper each for libraries, tests, benches and fuzzers, so that all flags are in one place.

add_library(penstock_flags INTERFACE)
target_include_directories(penstock_flags INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_options(penstock_flags INTERFACE
  $<BUILD_INTERFACE:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-fno-math-errno>
  $<BUILD_INTERFACE:-ffp-contract=off>  # the code fixes the order and rounding of every sum, not the compiler
  # GCC 12 warns about faults inside std::string that do not exist (its bug 105651) once it is precompiled.
  $<$<CXX_COMPILER_ID:GNU>:$<BUILD_INTERFACE:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread;-Wno-restrict>>
  # The libraries also go into the Python extension, a shared object. With hidden symbols, calls stay direct.
  $<$<NOT:$<CONFIG:Debug>>:$<BUILD_INTERFACE:-fPIC;-fvisibility=hidden>>
  $<$<BOOL:${PENSTOCK_WERROR}>:$<BUILD_INTERFACE:-Werror>>)
target_compile_features(penstock_flags INTERFACE cxx_std_20)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # ccache needs the first. With the second, GCC collects its own garbage less often.
  target_compile_options(penstock_flags INTERFACE
    $<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess;--param=ggc-min-heapsize=1048576>>)
  # GCC 12 wrongly warns of the _mm512_undefined_* inside its own intrinsics (its bug 105593).
  set(PENSTOCK_NO_UNINITIALIZED_WARNINGS -Wno-uninitialized -Wno-maybe-uninitialized)
  # Below -O2, GCC clears the upper parts of vector registers behind AVX code only with this. Else all SSE code after it is
  # many times as slow on Intel's processors.
  set(PENSTOCK_AVX_FLAGS -fexpensive-optimizations)
endif()
# For code in which tests spend their time: Debug builds optimise it more than the rest.
add_library(penstock_hot_code INTERFACE)
target_compile_options(penstock_hot_code INTERFACE $<$<CONFIG:Debug>:-O1>)
set_property(GLOBAL PROPERTY PENSTOCK_LIBRARIES penstock_flags)

# The dependencies of penstock_base, which its users inherit.
set(PENSTOCK_BASE_DEPS absl::cleanup absl::status absl::statusor absl::flat_hash_set absl::flat_hash_map absl::function_ref absl::span
                       Boost::json fmt::fmt spdlog::spdlog PkgConfig::xxhash Threads::Threads)

# penstock_precompiled(penstock_precompiled HEADER precompiled.h DEPS fmt::fmt) adds a target that shares its precompiled
# header.
function(penstock_precompiled NAME)
  cmake_parse_arguments(ARG "" "HEADER" "DEPS" ${ARGN})
  file(CONFIGURE OUTPUT ${NAME}.cc CONTENT "")
  add_library(${NAME} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${NAME}.cc)
  target_link_libraries(${NAME} PRIVATE penstock_flags ${ARG_DEPS})
  target_precompile_headers(${NAME} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/${ARG_HEADER})
endfunction()
penstock_precompiled(penstock_precompiled HEADER precompiled.h DEPS ${PENSTOCK_BASE_DEPS})
if(PENSTOCK_BUILD_TESTS)
  # RapidCheck's and GoogleTest's templates are most of a test's code. Optimising and instrumenting them costs more than it
  # gains. The code under test is optimised and instrumented as the preset says.
  add_library(penstock_test_flags INTERFACE)
  target_compile_options(penstock_test_flags INTERFACE
    $<$<CONFIG:Debug>:-O0;-fno-sanitize=null,alignment,object-size,vptr> $<$<NOT:$<CONFIG:Debug>>:-O1>)
  target_link_libraries(penstock_test_flags INTERFACE rapidcheck GTest::gmock)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_FLAGS MATCHES "-fsanitize=address")
    # A call of AddressSanitizer for each access compiles faster than a check in place, and runs slower.
    target_compile_options(penstock_test_flags INTERFACE --param=asan-instrumentation-with-call-threshold=0)
  endif()
  find_program(PENSTOCK_LLD ld.lld)  # links a test program in a third of the time
  if(PENSTOCK_LLD)
    target_link_options(penstock_test_flags INTERFACE -fuse-ld=lld)
  endif()
  penstock_precompiled(penstock_precompiled_test HEADER precompiled_test.h
                       DEPS ${PENSTOCK_BASE_DEPS} penstock_test_flags)
  add_library(penstock_test_main STATIC ${PROJECT_SOURCE_DIR}/tests/main.cc)
  target_link_libraries(penstock_test_main PUBLIC penstock_flags penstock_test_flags)
  set(PENSTOCK_TEST_TIMEOUT 900)  # seconds; longer than any machine needs, so only a test that hangs reaches it
endif()

# penstock_library(base SOURCES a.cc b.cc DEPS absl::status) -> target penstock_base
# A file with compiler flags of its own compiles alone, without the precompiled header. NO_PRECOMPILED: all of them do.
# ALONE: beginnings of the names of files that compile outside batches; anonymous namespaces may repeat names there.
# RAW_BYTES: the floor reads numbers out of bytes, so UBSan also checks their alignment.
function(penstock_library NAME)
  cmake_parse_arguments(ARG "NO_PRECOMPILED;RAW_BYTES" "" "SOURCES;DEPS;ALONE" ${ARGN})
  add_library(penstock_${NAME} STATIC ${ARG_SOURCES})
  set_target_properties(penstock_${NAME} PROPERTIES EXPORT_NAME ${NAME})
  target_link_libraries(penstock_${NAME} PUBLIC penstock_flags ${ARG_DEPS})
  if(ARG_RAW_BYTES AND CMAKE_CXX_FLAGS MATCHES "-fsanitize=address,undefined")
    target_compile_options(penstock_${NAME} PRIVATE -fsanitize=alignment)
  endif()
  if(NOT ARG_NO_PRECOMPILED)
    target_precompile_headers(penstock_${NAME} REUSE_FROM penstock_precompiled)
    foreach(SOURCE ${ARG_SOURCES})
      get_source_file_property(OPTIONS ${SOURCE} COMPILE_OPTIONS)
      if(OPTIONS)
        set_source_files_properties(${SOURCE} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
      endif()
    endforeach()
    if(PENSTOCK_UNITY)
      set_target_properties(penstock_${NAME} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
      foreach(ALONE ${ARG_ALONE})
        set(FILES ${ARG_SOURCES})
        list(FILTER FILES INCLUDE REGEX "^${ALONE}")
        set_source_files_properties(${FILES} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      endforeach()
    endif()
  endif()
  set_property(GLOBAL APPEND PROPERTY PENSTOCK_LIBRARIES penstock_${NAME})
endfunction()

# penstock_cuda_library(runtime SOURCES cuda_stream.cc DEPS penstock_runtime) adds the part of a floor that calls CUDA. It is
# penstock_runtime_cuda if the build includes CUDA. For tests it is penstock_runtime_cuda_emulated, which runs on the host's
# threads (src/penstock/testing/cuda/).
function(penstock_cuda_library NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;CUDA_DEPS" ${ARGN})
  if(PENSTOCK_HAS_CUDA)
    add_library(penstock_${NAME}_cuda STATIC ${ARG_SOURCES})
    set_target_properties(penstock_${NAME}_cuda PROPERTIES EXPORT_NAME ${NAME}_cuda)
    target_link_libraries(penstock_${NAME}_cuda PUBLIC ${ARG_DEPS} CUDA::cudart_static)
    set_property(GLOBAL APPEND PROPERTY PENSTOCK_LIBRARIES penstock_${NAME}_cuda)
  endif()
  if(PENSTOCK_BUILD_TESTS)
    add_library(penstock_${NAME}_cuda_emulated STATIC EXCLUDE_FROM_ALL ${ARG_SOURCES})
    target_link_libraries(penstock_${NAME}_cuda_emulated PUBLIC ${ARG_DEPS} penstock_kernels_cuda_emulated)
  endif()
  foreach(DEP ${ARG_CUDA_DEPS})
    if(PENSTOCK_HAS_CUDA)
      target_link_libraries(penstock_${NAME}_cuda PUBLIC ${DEP}_cuda)
    endif()
    if(PENSTOCK_BUILD_TESTS)
      target_link_libraries(penstock_${NAME}_cuda_emulated PUBLIC ${DEP}_cuda_emulated)
    endif()
  endforeach()
endfunction()

# penstock_tests(base DEPS penstock_base TESTS json_test.cc SLOW_TESTS file_test.cc) adds one program for a floor's tests,
# tests/base_test, and one ctest for each of its files: tests/base/json_test.cc -> "base/json_test". A test has the label
# fast or slow, or both golden and fast. SUFFIX names another program of the floor, which links other libraries. PROCESSORS
# is the number of threads that compute at once. Beside another test they would mostly wait for each other. With 1, a test
# has a CPU of its own, and its threads take turns on it.
# ONCE: neither the instruction set nor the optimiser decides what this floor's code does. So the sanitized build of
# `make check` runs its tests, and the optimised one (PENSTOCK_TESTS_ONCE) builds its slow tests alone.
function(penstock_tests FLOOR)
  cmake_parse_arguments(ARG "ONCE" "SUFFIX;PROCESSORS" "TESTS;SLOW_TESTS;GOLDEN_TESTS;DEPS" ${ARGN})
  if(ARG_ONCE AND PENSTOCK_TESTS_ONCE)
    set(ARG_TESTS)
    set(ARG_GOLDEN_TESTS)
    if(NOT ARG_SLOW_TESTS)
      return()
    endif()
  endif()
  set(TARGET ${FLOOR}${ARG_SUFFIX}_test)
  add_executable(${TARGET} ${ARG_TESTS} ${ARG_SLOW_TESTS} ${ARG_GOLDEN_TESTS})
  set_target_properties(${TARGET} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_include_directories(${TARGET} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${TARGET} PRIVATE ${ARG_DEPS} penstock_test_main)
  target_compile_definitions(${TARGET} PRIVATE
    PENSTOCK_SOURCE_DIR="${PROJECT_SOURCE_DIR}" PENSTOCK_GOLDEN_DIR="${PROJECT_BINARY_DIR}/golden")
  add_dependencies(${TARGET} penstock_golden_models)
  target_precompile_headers(${TARGET} REUSE_FROM penstock_precompiled_test)
  if(PENSTOCK_UNITY)
    set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
  endif()
  foreach(FILE ${ARG_TESTS} ${ARG_SLOW_TESTS} ${ARG_GOLDEN_TESTS})
    string(REGEX REPLACE "\\.cc$" "" NAME "${FLOOR}/${FILE}")
    add_test(NAME ${NAME} COMMAND ${TARGET} --file=${NAME}.cc)
    set(LABELS fast)
    if(FILE IN_LIST ARG_SLOW_TESTS)
      set(LABELS slow)
    elseif(FILE IN_LIST ARG_GOLDEN_TESTS)
      set(LABELS golden fast)
    endif()
    set_tests_properties(${NAME} PROPERTIES LABELS "${LABELS}" TIMEOUT ${PENSTOCK_TEST_TIMEOUT})
    if(ARG_PROCESSORS)
      set_tests_properties(${NAME} PROPERTIES PROCESSORS ${ARG_PROCESSORS} PROCESSOR_AFFINITY ON)
    endif()
  endforeach()
endfunction()

# penstock_gpu_test(kernels/cuda_kernels_test FILES cuda_kernels_test.cc DEPS penstock_kernels_cuda) runs the same files on a
# GPU: ctest "kernels/cuda_kernels_test/gpu" with the label gpu, which is skipped if there is no GPU.
function(penstock_gpu_test NAME)
  cmake_parse_arguments(ARG "" "" "FILES;DEPS" ${ARGN})
  string(REPLACE "/" "_" TARGET ${NAME}_gpu)
  add_executable(${TARGET} ${ARG_FILES} ${PROJECT_SOURCE_DIR}/tests/gpu_main.cc)
  set_target_properties(${TARGET} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_include_directories(${TARGET} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${TARGET} PRIVATE ${ARG_DEPS} penstock_test_flags ${PENSTOCK_BASE_DEPS})
  target_precompile_headers(${TARGET} REUSE_FROM penstock_precompiled_test)
  target_compile_definitions(${TARGET} PRIVATE
    PENSTOCK_SOURCE_DIR="${PROJECT_SOURCE_DIR}" PENSTOCK_GOLDEN_DIR="${PROJECT_BINARY_DIR}/golden")
  add_dependencies(${TARGET} penstock_golden_models)
  add_test(NAME ${NAME}/gpu COMMAND ${TARGET})
  set_tests_properties(${NAME}/gpu PROPERTIES LABELS gpu TIMEOUT ${PENSTOCK_TEST_TIMEOUT} SKIP_RETURN_CODE 77)
endfunction()

# penstock_bench(kernels/gemm_bench DEPS penstock_kernels) builds bench/kernels/gemm_bench.cc.
function(penstock_bench NAME)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  string(REPLACE "/" "_" TARGET ${NAME})
  add_executable(${TARGET} ${PROJECT_SOURCE_DIR}/bench/${NAME}.cc)
  set_target_properties(${TARGET} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  target_include_directories(${TARGET} PRIVATE ${PROJECT_SOURCE_DIR}/bench)
  target_link_libraries(${TARGET} PRIVATE ${ARG_DEPS} benchmark::benchmark_main)
endfunction()

# penstock_fuzzer(json_fuzzer DEPS penstock_base) builds fuzz/json_fuzzer.cc, whose corpus is fuzz/corpus/json_fuzzer/.
# Without libFuzzer, it becomes a test that runs the corpus.
function(penstock_fuzzer NAME)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  add_executable(${NAME} ${PROJECT_SOURCE_DIR}/fuzz/${NAME}.cc)
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS})
  if(PENSTOCK_BUILD_FUZZERS)
    target_link_options(${NAME} PRIVATE -fsanitize=fuzzer)
  else()
    if(NOT TARGET penstock_fuzz_replay)
      add_library(penstock_fuzz_replay STATIC ${PROJECT_SOURCE_DIR}/fuzz/replay_main.cc)
      target_link_libraries(penstock_fuzz_replay PUBLIC penstock_flags ${PENSTOCK_BASE_DEPS})
      target_precompile_headers(penstock_fuzz_replay REUSE_FROM penstock_precompiled)
    endif()
    target_link_libraries(${NAME} PRIVATE penstock_fuzz_replay ${PENSTOCK_BASE_DEPS})
    target_precompile_headers(${NAME} REUSE_FROM penstock_precompiled)
    add_test(NAME fuzz/${NAME} COMMAND ${NAME} ${PROJECT_SOURCE_DIR}/fuzz/corpus/${NAME})
    set_tests_properties(fuzz/${NAME} PROPERTIES LABELS fast TIMEOUT ${PENSTOCK_TEST_TIMEOUT})
  endif()
endfunction()
