// attnkit bundle: a model in a folder that can be copied to another machine and run there.
#include "hosts/cli/bundle/bundle.hpp"

#include "core/search/failure.hpp"
#include "hosts/cli/bundle/staging.hpp"
#include "hosts/cli/command.hpp"
#include "hosts/cli/io/open.hpp"

namespace attnkit::cli {

const Options bundle_options = {
    {"output,o", "DIR", "the new folder; one that is there must be empty and no mount point"},
};

Exit bundle_command(const Arguments& arguments) {
  if (!arguments.has("output")) fail(Exit::usage, "a bundle needs a folder: --output DIR");
  const std::string folder = arguments.text("output");
  check_new_folder(folder);
  const Runtime runtime = open_runtime(arguments);
  const Model model = open_model(runtime, arguments);
  const Json bundle = write_bundle(runtime, model, arguments.text("MANIFEST"), folder);
  print_result(arguments.json(), bundle, bundle_text(bundle));
  return Exit::success;
}

}  // namespace attnkit::cli
