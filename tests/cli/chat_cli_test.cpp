// From records to a chat and an export, from the command line.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

struct ChatCli : testing::Test {
  ChatCli() { setenv("XDG_CACHE_HOME", (folder.path() + "/cache").c_str(), 1); }

  ProcessResult run(std::vector<std::string> arguments) {
    return run_process(test::octet_program(), arguments, folder.path());
  }
  ProcessResult shell(const std::string& line) { return run_process("/bin/sh", {"-c", line}, folder.path()); }
  ProcessResult generate(const std::string& model, std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", model});
    more.insert(more.end(), {"--device", "cpu", "--num_threads", "1"});
    return run(more);
  }
  // The bytes tokenizer, with the tokens of ChatML.
  void write_tokenizer(const std::string& name) {
    nlohmann::json vocab = nlohmann::json::object();
    const ProcessResult made = run({"export", "base", "--tokenizer", "bytes", "--output", "exported"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    nlohmann::json file = nlohmann::json::parse(read_text(folder.path() + "/exported/tokenizer.json"));
    for (const auto& [id, text] : {std::pair(257, "<|im_start|>"), std::pair(258, "<|im_end|>")}) {
      nlohmann::json token = file["added_tokens"][0];
      token["id"] = id, token["content"] = text;
      file["added_tokens"].push_back(token);
    }
    std::filesystem::create_directories(folder.path() + "/" + name);
    folder.write(name + "/tokenizer.json", file.dump());
  }
  std::vector<std::string> train(const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {
        "train", "--dataset",        "chats.jsonl", "--run_name",
        name,    "--device",         "cpu",         "--num_threads",
        "1",     "--model_preset",   "llama-tiny",  "--mixed_precision",
        "fp32",  "--max_seq_length", "64",          "--per_device_train_batch_size",
        "8",     "--learning_rate",  "3e-3",        "--progress",
        "plain", "--eval_split",     "0",           "--eval_steps",
        "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  void write_chats() {
    std::string text;
    for (int i = 0; i < 64; ++i) text += "{\"prompt\": \"Say hi\", \"response\": \"hi\"}\n";
    folder.write("chats.jsonl", text);
  }
  nlohmann::json json(const std::string& name) {
    return nlohmann::json::parse(read_text(folder.path() + "/" + name));
  }
  TemporaryFolder folder;
};

TEST_F(ChatCli, AModelStopsIsTalkedToAndExportedWithItsTemplate) {
  write_chats();
  const ProcessResult trained = run(train("chat", {"--max_steps", "40"}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  // What was chosen is shown, and the first example with its mask.
  EXPECT_THAT(trained.out,
              HasSubstr("format     prompt_completion (columns prompt, response); chat template plain"));
  EXPECT_THAT(trained.out, HasSubstr("loss       on the assistant's messages (train_on completion)"));
  EXPECT_THAT(trained.out, HasSubstr("tokenizer  bytes: every byte is a token; for a larger vocabulary"));
  EXPECT_THAT(trained.out, HasSubstr("first example of chats.jsonl (10 tokens, 3 trained (30.0 %)"));
  EXPECT_THAT(trained.out, HasSubstr("Say hi\n[[hi<|endoftext|>]]"));

  const ProcessResult answer = generate("runs/chat", {"--user", "Say hi"});
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_EQ(answer.out, "hi\n");
  // Lines of stdin; commands; the history.
  const ProcessResult talk = shell(fmt::format(
      "printf 'Say hi\\n/reset\\n\\nSay hi\\n/exit\\nSay hi\\n' | {} generate runs/chat --chat --device cpu",
      test::octet_program()));
  EXPECT_EQ(talk.out, "hi\nhi\n") << talk.err;

  const ProcessResult exported = run({"export", "runs/chat", "--output", "model"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_THAT(exported.out, HasSubstr("with the chat template; answers end with <|endoftext|>"));
  EXPECT_THAT(json("model/tokenizer_config.json")["chat_template"].get<std::string>(),
              StartsWith("{#- octet: {\"chat_template\":\"plain\""));
  EXPECT_EQ(json("model/config.json")["eos_token_id"], 256);
  EXPECT_EQ(json("model/generation_config.json")["eos_token_id"], 256);
  EXPECT_EQ(generate("model", {"--user", "Say hi", "--max_tokens", "8"}).out, "hi\n");
}

TEST_F(ChatCli, TheEndOfChatmlIsExportedFirst) {
  write_chats();
  ASSERT_EQ(run(train("base", {"--max_steps", "1"})).exit_code, 0);
  std::filesystem::rename(folder.path() + "/runs/base", folder.path() + "/base");
  write_tokenizer("tok");
  const ProcessResult trained = run(train("chat", {"--max_steps", "60", "--tokenizer", "tok", "--vocab_size",
                                                   "260", "--default_system", "", "--template", "qwen"}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("chat template chatml"));
  EXPECT_EQ(generate("runs/chat", {"--user", "Say hi"}).out, "hi\n");
  // A prompt in the model's own form stops there, too.
  const ProcessResult prompt =
      generate("runs/chat",
               {"--prompt", "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n", "--print_ids"});
  EXPECT_THAT(prompt.out, testing::EndsWith(" 104 105 258\n"));
  ASSERT_EQ(run({"export", "runs/chat", "--output", "model"}).exit_code, 0);
  EXPECT_EQ(json("model/generation_config.json")["eos_token_id"], nlohmann::json::parse("[258, 256]"));
  EXPECT_EQ(json("model/tokenizer_config.json")["eos_token"], "<|im_end|>");
  EXPECT_EQ(generate("model", {"--user", "Say hi"}).out, "hi\n");

  // A run on text does not take the end of an answer from a template that its base merely has.
  folder.write("text.txt", std::string(2000, 'x'));
  nlohmann::json ends = json("model/generation_config.json"), config = json("model/config.json");
  ends["eos_token_id"] = config["eos_token_id"] = 256;
  folder.write("model/generation_config.json", ends.dump());
  folder.write("model/config.json", config.dump());
  const ProcessResult on_text =
      run({"train", "--dataset", "text.txt", "--model_name_or_path", "model", "--run_name", "text",
           "--max_steps", "1", "--max_seq_length", "64", "--device", "cpu", "--progress", "plain"});
  ASSERT_EQ(on_text.exit_code, 0) << on_text.err;
  ASSERT_EQ(run({"export", "runs/text", "--output", "text_model"}).exit_code, 0);
  EXPECT_EQ(json("text_model/generation_config.json")["eos_token_id"], 256);
  EXPECT_EQ(json("text_model/config.json")["eos_token_id"], 256);
}

TEST_F(ChatCli, AModelOfTextsAsksForATemplate) {
  folder.write("text.txt", std::string(2000, 'x'));
  std::vector<std::string> arguments = train("text", {"--max_steps", "1"});
  arguments[2] = "text.txt";
  const ProcessResult trained = run(arguments);
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("tokenizer  bytes: every byte is a token"));
  const ProcessResult unknown = generate("runs/text", {"--chat"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err,
              HasSubstr("was not trained on conversations and has no chat template; pass --chat_template"));
  EXPECT_EQ(
      generate("runs/text", {"--user", "x", "--chat_template", "plain", "--max_new_tokens", "3"}).exit_code,
      0);
  EXPECT_THAT(generate("runs/text", {"--user", "x", "--prompt", "y"}).err,
              HasSubstr("give the question as --user"));
  EXPECT_THAT(generate("runs/text", {"--system", "x"}).err, HasSubstr("--system is for a chat"));
}

TEST_F(ChatCli, PreviewWritesNothing) {
  folder.write(
      "chats.jsonl",
      "{\"prompt\": \"Q1\", \"response\": \"A1\"}\n{\"prompt\": \"Q2\", \"response\": \"A2\", \"images\": [\"x\"]}\n"
      "{\"prompt\": \"Q3\", \"response\": \"A3\"}\n{\"prompt\": \"Q4\", \"response\": \"A4\"}\n");
  const ProcessResult result = run({"prepare", "--dataset", "chats.jsonl", "--preview", "2", "--on_error",
                                    "skip", "--tokenizer", "bytes"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      HasSubstr("example 1: 6 tokens, 3 trained (50.0 %); trained tokens in [[ ]]\nQ1\n[[A1<|endoftext|>]]"));
  EXPECT_THAT(result.out,
              HasSubstr("example 2: 6 tokens, 3 trained (50.0 %); trained tokens in [[ ]]\nQ3\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("Q4")));
  EXPECT_THAT(result.out, HasSubstr("skipped: 1 unsupported content"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/cache"));
  // In training the count is shown as well.
  EXPECT_THAT(run(train("skips", {"--max_steps", "1", "--on_error", "skip"})).out,
              HasSubstr("skipped    records: 1 unsupported content"));
}

}  // namespace
}  // namespace octet::test
