// All limits on outside data, in one place. Each is enforced where the data enters.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

// JSON documents and chat templates of a model folder.
inline constexpr int kMaxJsonDepth = 64;
inline constexpr uint64_t kMaxConfigBytes = 4ull << 20;
inline constexpr uint64_t kMaxIndexBytes = 256ull << 20;
inline constexpr uint64_t kMaxTokenizerBytes = 128ull << 20;
inline constexpr uint64_t kMaxTemplateBytes = 1ull << 20;

// Model files (the safetensors format itself caps its header at 100 MB).
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr uint64_t kMaxTensors = 2'000'000;
inline constexpr int kMaxTensorRank = 8;
inline constexpr uint64_t kMaxTensorNameBytes = 4096;
inline constexpr int kMaxShards = 4096;
inline constexpr uint64_t kMaxGgufHeaderBytes = 512ull << 20;
inline constexpr int64_t kMaxCharsmapBytes = 4 << 20;
inline constexpr int kMaxFolderEntries = 100'000;

// Model dimensions. Every published MoE model fits; a product of three dimensions fits 64 bits.
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxRopes = 16;
inline constexpr int64_t kMaxExperts = 4096;
inline constexpr int64_t kMaxTopk = 64;
inline constexpr int64_t kMaxHeads = 1024;
inline constexpr int64_t kMaxHeadDim = 1024;
inline constexpr int64_t kMaxModelDim = 1 << 17;
inline constexpr int64_t kMaxVocabSize = 1 << 21;
inline constexpr int64_t kMaxContext = 1 << 24;

// Networks that predict experts (SiDA).
inline constexpr uint64_t kMaxSidaHeaderBytes = 64ull << 10;
inline constexpr int64_t kMaxSidaDim = 1024;
inline constexpr int64_t kMaxSidaWindow = 1024;
inline constexpr float kMaxSidaWeight = 1e6f;  // on both sides of 0: no sum of products then overflows

// Chat templates.
inline constexpr int64_t kMaxTemplateSteps = 10'000'000;
inline constexpr int64_t kMaxTemplateOutputBytes = 4ll << 20;
inline constexpr int kMaxTemplateDepth = 100;

// Mirrors of a model, and extents that one of their files holds.
inline constexpr size_t kMaxMirrors = 15;
inline constexpr size_t kMaxMirrorExtents = 1 << 20;

// Output formats: JSON schemas, regular expressions and grammars of requests.
inline constexpr uint64_t kMaxSchemaBytes = 1ull << 20;
inline constexpr uint64_t kMaxGrammarBytes = 64ull << 10;
inline constexpr int kMaxGrammarDepth = 100;
inline constexpr int32_t kMaxGrammarRepeat = 1 << 24;
inline constexpr int64_t kMaxGrammarStates = 1 << 17;
inline constexpr int64_t kMaxGrammarSteps = 1 << 24;   // of a compilation
inline constexpr int64_t kMaxCompileBytes = 64 << 20;  // of the automata that it holds at once
inline constexpr int64_t kMaxPatternStates = 1 << 13;  // of a pattern that is combined with other keywords
inline constexpr size_t kMaxGrammarThreads = 1024;     // ways in which a text may match so far
inline constexpr int64_t kMaxMaskSteps = 1 << 26;      // that the mask of one token takes

// Requests.
inline constexpr int64_t kMaxJobShards = 4096;
inline constexpr uint64_t kMaxRequestLineBytes = 16ull << 20;
inline constexpr uint64_t kMaxUploadBytes = 4ull << 30;  // of a file for batches, which lies on disk
inline constexpr uint64_t kMaxRequestIdBytes = 512;
inline constexpr int kMaxLogprobs = 20;
inline constexpr double kMaxTemperature = 100;
// The memory that tokenizing takes for each byte of a text. Measured: 48 for one letter repeated.
inline constexpr uint64_t kTokenizingBytesPerByte = 56;

inline constexpr double kMinRepetitionPenalty = 1e-3;
inline constexpr double kMaxPenalty = 2;      // presence and frequency penalties, on both sides of 0
inline constexpr double kMaxLogitBias = 100;  // on both sides of 0
inline constexpr size_t kMaxBiasedTokens = 1024;
inline constexpr size_t kMaxBadWords = 128;
inline constexpr int64_t kMaxAnswers = 128;  // of one request
inline constexpr size_t kMaxChoices = 1024;  // of one request
inline constexpr size_t kMaxStopTokens = 128;
inline constexpr double kMaxRepetitionPenalty = 100;
inline constexpr int kMaxStopTexts = 16;
inline constexpr uint64_t kMaxStopTextBytes = 256;
inline constexpr int64_t kMaxBatchSize = 4096;
inline constexpr int64_t kMaxPrefillChunk = 65536;
inline constexpr int kMaxThreads = 1024;
inline constexpr int kMaxRanks = 256;  // described machines that share a model

}  // namespace penstock
