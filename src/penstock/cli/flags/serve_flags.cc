// The flags of penstock serve.
#include "penstock/cli/flags/serve_flags.h"

#include "penstock/base/limits.h"

namespace penstock::cli {

void AddServeFlags(CLI::App& command, ServeFlags& flags) {
  BeginGroup(command, "Server");
  AddFlag(command, "--host", flags.server.http.host, "address to listen at; 0.0.0.0: all of this machine")
      .TypeName("ADDRESS")
      .ShowDefault();
  AddFlag(command, "--port", flags.server.http.port, "port to listen at; 0: any free one")
      .InRange(0, 65535)
      .ShowDefault();
  AddFlag(command, "--served-model-name", flags.server.api.model_name, "the model's name (default: the folder's)")
      .TypeName("NAME");
  AddFlag(
      command, "--api-key", flags.server.api.api_keys,
      "a key that clients must send; may be given several times. Also read from PENSTOCK_API_KEY, which other users "
      "of the machine cannot see")
      .TypeName("KEY");
  AddFlag(command, "--cors", flags.server.http.cors_origin,
          "origin whose pages may use the server, such as https://example.com; * for all")
      .TypeName("ORIGIN");
  AddFlag(command, "--max-waiting", flags.server.api.max_waiting,
          "requests that may wait for a place; further ones get status 429 (default: 16 for each place)")
      .InRange(0, 1000000);
  AddFlag(command, "--max-connections", flags.server.http.max_connections, "open connections; further ones are closed")
      .InRange(1, 1000000)
      .ShowDefault();
  AddFlag(command, "--batches", flags.server.batch_dir,
          "folder of /v1/files and /v1/batches, which continue after any stop; without it the server has none")
      .TypeName("DIR");
  AddFlag(command, "--drain", flags.server.drain_s,
          "seconds that requests under way have to finish after a signal to stop; a second signal stops at once")
      .NumberFrom(0, 1e6)
      .ShowDefault();
  AddFlag(command, "--system", flags.server.api.system, "system message of chats that have none").TypeName("TEXT");
}

}  // namespace penstock::cli
