# Proves that a unit compiled for a newer instruction set exports no code, only its table. An inline function of a header,
# say, could be the copy that the linker keeps for every unit, and would then fault on older machines. TABLES matches the
# names of the tables of OBJECTS, COUNT says how many there are.
execute_process(COMMAND ${NM} --defined-only --extern-only ${OBJECTS} OUTPUT_VARIABLE OUTPUT RESULT_VARIABLE RESULT)
if(NOT RESULT EQUAL 0)
  message(FATAL_ERROR "${NM} failed on ${OBJECTS}")
endif()
string(REGEX MATCHALL "[0-9a-f]+ [A-Za-z] [^\n]+" SYMBOLS "${OUTPUT}")
set(NUM_TABLES 0)
foreach(SYMBOL IN LISTS SYMBOLS)
  if(SYMBOL MATCHES " [TWiu] ")  # code, weak code, chosen at load time, unique
    message(FATAL_ERROR "a unit with instruction set flags exports ${SYMBOL}")
  elseif(SYMBOL MATCHES " [DR] .*${TABLES}")
    math(EXPR NUM_TABLES "${NUM_TABLES} + 1")
  endif()
endforeach()
if(NOT NUM_TABLES EQUAL COUNT)
  message(FATAL_ERROR "expected ${COUNT} tables, found ${NUM_TABLES}: ${SYMBOLS}")
endif()
