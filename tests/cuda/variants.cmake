# The CUDA variants of plugins: names, of which causal_names, linear_names and cross_names do so, and of each left_out_<name>, tests of its
# plugin that are not for it, and slow_<name>, those that take the emulator minutes.
file(GLOB variants CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/plugins/*/*.cu)
foreach(variant IN LISTS variants)
  cmake_path(GET variant STEM name)
  list(APPEND names ${name})
  set(own_test ${PROJECT_SOURCE_DIR}/plugins/${name}/${name}_test.cpp)
  file(STRINGS ${own_test} refuses_causal REGEX "RefusesCausalBlocks")
  file(STRINGS ${own_test} encoders_only REGEX "RefusesWhatIsNoWholeEncoderSequence|RefusesAllButWholeBidirectional")
  if(refuses_causal)
    list(APPEND cross_names ${name})
  elseif(NOT encoders_only)
    list(APPEND causal_names ${name})
  endif()
  # Of the plugin's own test, its float64 form and golden cases: what is not for a variant.  Its streams round as they are
  # split, which plugin.h allows; heads of keys that are shared come to a linear one repeated; it has no workers.
  set(left_out *Cuda*:*OfOneHead:RopeLinear.StreamsCrossAttentionIfAsked:Performer.TheRunningStabiliserDoesNotDependOnChunks)
  # What keeps the emulator busy for minutes: .ci/nightly and a GPU have it.
  set(slow *.ItsGradientEqualsCentralDifferences)
  if(name STREQUAL performer)  # 40,000 runs about omega, and more of what others hold
    string(APPEND slow :*GivesAnUnbiasedEstimate*:*HasAFixedStabiliser*)
  endif()
  if(name STREQUAL local)  # roundings of the state, which are the CPU's, and equal bits from other pieces
    string(APPEND left_out :*ARoundedCache*:*InAnyChunks*)
    string(APPEND slow :Local.GradientsOfManyTilesEqualCentralDifferences)
  endif()
  if(name STREQUAL bigbird)  # a refusal that reads the table
    string(APPEND left_out :*RefusesATableOfAnotherModel*)
  endif()
  if(name STREQUAL s4d)  # the longest gradients
    string(APPEND slow :S4d.HasGradients:*WhereAIsSmall*:*HasExactGradients*)
  endif()
  if(name MATCHES "^(linformer|nystromformer)$")
    string(APPEND slow :*.HasGradients)
  endif()
  if(name STREQUAL luna)  # the CPU's count of numbers, of which it saves fewer
    string(APPEND left_out :Luna.SavesAsMuchWhateverTheLength)
    string(APPEND slow :Luna.HasGradients:Luna.HasGradientsUntied:Luna.HasGradientsInEveryOption)
  endif()
  if(name STREQUAL efficient)  # equal bits from other pieces
    string(APPEND left_out :Efficient.IsTheSameBitForBitAppendedInOnePiece)
  endif()
  if(name STREQUAL latte)  # equal bits from other pieces
    string(APPEND left_out :Latte.IsTheSameBitForBitHoweverItIsSplit)
  endif()
  file(STRINGS ${variant} linear REGEX "kernels/cuda/linear[./]")
  if(linear)
    if(NOT refuses_causal)
      list(APPEND linear_names ${name})
    endif()
    string(APPEND left_out :*SharesHeadsOfKeys*)
    string(APPEND slow :*.HasGradients:*.HasGradientsOf*:*.HasGradientsWhe*)
  endif()
  set(left_out_${name} ${left_out})
  set(slow_${name} ${slow})
endforeach()

# Tests of variants: laws of all, what linear ones share, and beside a plugin what its own does.
file(GLOB variants_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/plugins/*/cuda_test.cpp)
list(PREPEND variants_tests ${CMAKE_CURRENT_LIST_DIR}/variants_test.cpp ${CMAKE_CURRENT_LIST_DIR}/linear_test.cpp)
set(halves_tests ${CMAKE_CURRENT_LIST_DIR}/halves_test.cpp)

# A program of tests of all variants, which are plugins of the CPU in the folder `bridged`, beside the mechanisms' own in `plugins`.
function(attnkit_cuda_variants program bridged plugins)
  foreach(list names causal_names cross_names linear_names)
    list(JOIN ${list} " " ${list})
  endforeach()
  target_compile_definitions(${program} PRIVATE
    ATTNKIT_CUDA_NAMES="${names}" ATTNKIT_CUDA_CAUSAL="${causal_names}" ATTNKIT_CUDA_CROSS="${cross_names}" ATTNKIT_CUDA_LINEAR="${linear_names}"
    ATTNKIT_EMULATED_DIR="${bridged}" ATTNKIT_PLUGIN_DIR="${plugins}")
endfunction()
