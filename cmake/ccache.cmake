# Uses ccache, if it is installed, for C++ and CUDA. scripts/install-deps.sh installs it; CCACHE_DISABLE=1 turns it off.
find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache refuses files that use a precompiled header unless it may ignore the header's time stamps and macros. Paths below
  # the checkout are hashed relative to it, so that clones of the project share one cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
