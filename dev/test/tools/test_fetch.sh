#!/bin/sh
# dev/data/model.sh against a hub that is a folder: weights in main or proposed, whole or in parts,
# or pickled; and against one that is a server, which wants a token. Then all scripts that fetch,
# without a network, and with one that breaks off.
# usage: sh dev/test/tools/test_fetch.sh    (from the top of the repository; needs curl)
set -u
. dev/test/cli.sh
command -v curl >/dev/null || { echo "skip fetch: no curl on this machine"; exit 0; }
in_a_folder
trap 'kill "${server:-}" 2>/dev/null; rm -rf "$work"' EXIT
export HF_ENDPOINT="file://$work/hub"

# tensors FILE BYTES: a safetensors file of one tensor
tensors() {
    mkdir -p "$(dirname "$1")"
    header="{\"x\":{\"dtype\":\"U8\",\"shape\":[$2],\"data_offsets\":[0,$2]}}"
    printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header" >"$1"
    head -c "$2" /dev/zero >>"$1"
}
# model NAME: what each has
model() {
    repo=hub/facebook/$1/resolve
    mkdir -p "$repo/main" "hub/api/models/facebook/$1"
    echo '{"model_type": "opt"}' | tee "$repo/main/config.json" >"$repo/main/vocab.json"
    echo '#version: 0.2' >"$repo/main/merges.txt"
    echo '{"branches":[],"pullRequests":[{"ref":"refs/pr/9"},{"ref":"refs/pr/25"},{"ref":"refs/pr/31"}]}' \
        >"hub/api/models/facebook/$1/refs"
}
fetch() { sh "$top/dev/data/model.sh" "$@" >fetch.out 2>fetch.err; }
# fails PATTERN OPTION...: and says PATTERN
fails() {
    pattern=$1
    shift
    ! fetch "$@" && grep -q "$pattern" fetch.err
}

model opt-125m
tensors hub/facebook/opt-125m/resolve/main/model.safetensors 2000
check main_has_it fetch opt-125m a
check it_came cmp a/model.safetensors hub/facebook/opt-125m/resolve/main/model.safetensors

# Nothing of the owner's; of what was proposed the newest that has weights, in parts.
model opt-6.7b
tensors hub/facebook/opt-6.7b/resolve/refs/pr/9/model.safetensors 2000
parts=hub/facebook/opt-6.7b/resolve/refs/pr/25
for i in 1 2; do tensors $parts/model-0000$i-of-00002.safetensors $((2000 * i)); done
echo '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}' \
    >$parts/model.safetensors.index.json
mv $parts/model-00002-of-00002.safetensors later
check an_interrupted_one_is_told fails 'cannot download.*00002-of' opt-6.7b c
mv later $parts/model-00002-of-00002.safetensors
tensors hub/facebook/opt-6.7b/resolve/main/model.safetensors 2000  # the owner's, meanwhile
check it_goes_on_with_the_same fetch opt-6.7b c
check all_parts_came sh -c 'for i in 1 2; do
    cmp c/model-0000$i-of-00002.safetensors "$1"/model-0000$i-of-00002.safetensors || exit 1; done' - $parts
head -c 1500 c/model-00001-of-00002.safetensors >cut && mv cut c/model-00001-of-00002.safetensors
check a_damaged_part_is_named fails '00001-of-00002.safetensors is damaged: 1500 bytes' opt-6.7b c

# Pickled weights are converted; of them a user's own file stays.
model opt-13b
pickles=$top/dev/test/fixtures/pickle parts=hub/facebook/opt-13b/resolve/main
mkdir d && cp "$pickles/plain.bin" d/pytorch_model-00001-of-00002.bin
cp "$pickles/model.bin" $parts/pytorch_model-00002-of-00002.bin
echo '{"weight_map": {"float": "pytorch_model-00001-of-00002.bin",
    "0.weight": "pytorch_model-00002-of-00002.bin"}}' >$parts/pytorch_model.bin.index.json
check pickled_ones_are_converted fetch opt-13b d
check all_of_it sh -c 'grep -q "22 tensors" fetch.out &&
    grep -aq "\"parameter\"" d/model.safetensors && grep -aq "\"1.bias\"" d/model.safetensors'
check your_own_file_stays sh -c '[ "$(ls d/*.bin)" = d/pytorch_model-00001-of-00002.bin ]'
model opt-350m
cp "$pickles/model.bin" hub/facebook/opt-350m/resolve/main/pytorch_model.bin
check one_pickle_is_converted fetch opt-350m g
for name in opt-350 ../x a/b/c; do
    refuses "no_model_$name" 1 "no model '$name'" sh "$top/dev/data/model.sh" "$name" i
done

# A model of another family: whatever files of a tokenizer it has.
llama=hub/some-owner/Llama-x/resolve/main
mkdir -p $llama
for file in config generation_config tokenizer tokenizer_config special_tokens_map; do
    echo "{\"$file\": 1}" >$llama/$file.json
done
printf '\n\016\n\005<unk>' >$llama/tokenizer.model
check a_tokenizer_alone fetch --tokenizer some-owner/Llama-x h
check no_weights_came test "$(ls h | wc -l)" -eq 6
echo '<html>' >$llama/merges.txt
check a_web_page_is_no_file fails 'merges.txt is wrong: .* is a web page' some-owner/Llama-x i
check and_does_not_stay test ! -e i/merges.txt
rm $llama/merges.txt
tensors $llama/model.safetensors 2000

# A hub that is a server. It wants a token for that model, and sends who asks for weights to another
# server, which is not given the token.
server() {
    cat >server.py <<'X'
import http.server
import os


class Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        token, part = self.headers.get("Authorization"), self.headers.get("Range", "bytes=0-")
        here = self.headers["Host"].startswith("127.")
        with open("asked", "a") as f:
            print(self.headers["Host"].split(":")[0], self.path, part, token, file=f)
        if here and "Llama" in self.path and token != "Bearer mine":
            self.send_error(401)
        elif not os.path.isfile("hub" + self.path):
            self.send_error(404)
        elif here and self.path.endswith(".safetensors"):
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            data = open("hub" + self.path, "rb").read()
            first, last = part[6:].split("-")
            whole, data = len(data), data[int(first):int(last or len(data)) + 1]
            self.send_response(206 if data else 416)
            end = int(first) + len(data) - 1
            self.send_header("Content-Range", f"bytes {first}-{end}/{whole}" if data else f"bytes */{whole}")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

    do_HEAD = do_GET

    def log_message(self, *ignored):
        pass


hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
print(hub.server_port, flush=True)
hub.serve_forever()
X
    export no_proxy='*'
    python3 server.py >port &
    server=$!
    await $server test -s port
    export HF_ENDPOINT="http://127.0.0.1:$(cat port)"
    rm -r h
    refuses a_license_is_to_be_accepted 1 "some-owner/Llama-x: the hub says 401: accept its license at $HF_ENDPOINT/some-owner" \
        sh "$top/dev/data/model.sh" some-owner/Llama-x h
    check that_leaves_nothing test ! -e h
    mkdir h
    head -c 1000 $llama/model.safetensors >h/model.safetensors.part
    cp $llama/config.json h/config.json.part  # whole, but not renamed
    export HF_TOKEN=mine
    check a_token_opens_it fetch some-owner/Llama-x h
    check all_came_from_the_server sh -c 'cd "$1" && for f in *; do cmp $f "$2"/h/$f || exit 1; done' - $llama "$work"
    check from_the_part_on grep -q "^localhost .*/model.safetensors bytes=1000- None$" asked
    check the_other_server_gets_no_token sh -c 'grep -q "^localhost" asked && ! grep -q "^localhost.*mine" asked'
    rm asked
    env HF_ENDPOINT="http://localhost:$(cat port)" TINYSHAKESPEARE_URL="http://127.0.0.1:$(cat port)/tiny" \
        sh "$top/dev/data/tinyshakespeare.sh" tiny >fetch.out 2>fetch.err
    check nor_does_any_but_the_hub sh -c 'grep -q "^127.*tiny" asked && ! grep -q mine asked'
    unset HF_TOKEN
    if command -v wget >/dev/null; then
        mkdir wget
        for tool in sh wget awk dirname basename mkdir mv rm rmdir wc tr od head tail grep sed sort cat; do
            ln -s "$(command -v $tool)" wget/
        done
        check wget_will_do env PATH="$work/wget" sh "$top/dev/data/model.sh" opt-125m j
        check it_brings_the_same cmp j/model.safetensors hub/facebook/opt-125m/resolve/main/model.safetensors
    fi
    kill $server
    export HF_ENDPOINT="file://$work/hub"
}
if command -v python3 >/dev/null; then server
else echo "skip fetch_from_a_server: no python3 on this machine"; fi

# Without a network a script says so at once, and leaves nothing behind.
export no_proxy='*'
offline() { env HF_ENDPOINT=http://127.0.0.1:1/ GLUE_URL=http://127.0.0.1:1 HELLASWAG_URL=http://127.0.0.1:1 \
    TINYSHAKESPEARE_URL=http://127.0.0.1:1 sh "$top/dev/data/$@"; }
began=$(date +%s)
for asked in "model.sh gpt2 HF_ENDPOINT" "fineweb10B.sh 1 HF_ENDPOINT" "tinystories.sh - HF_ENDPOINT" "sst2.sh - GLUE_URL" \
    "hellaswag.sh - HELLASWAG_URL" "tinyshakespeare.sh - TINYSHAKESPEARE_URL"; do
    # shellcheck disable=SC2086
    set -- $asked
    which=$2
    [ "$which" != - ] || which=''
    refuses "without_a_network_$1_$2" 1 "cannot reach http://127.0.0.1:1: .*$3=URL" \
        offline "$1" $which none/here
done
check in_seconds_and_without_a_trace test $(($(date +%s) - began)) -lt 10 -a ! -e none
cp -r a known
check what_is_there_needs_no_network offline model.sh opt-125m known
check what_is_not_there_is_told fails 'cannot download .*config.json: there is none (HF_ENDPOINT' gpt2 none/here
# A connection that breaks off leaves a part, which is gone on with.
mkdir -p broken
program broken/curl <<'X'
#!/bin/sh
case $* in *-sI*) exit 0 ;; *' 0-0 '*) printf 200; exit 0 ;; esac
while [ "$1" != -o ]; do shift; done
printf '{"mo' >>"$2"
exit 18
X
check a_part_is_kept sh -c '! PATH="$PWD/broken:$PATH" sh "$1"/dev/data/model.sh gpt2 part >fetch.out 2>fetch.err &&
    grep -q "remove part/config.json.part and start over" fetch.err && [ -s part/config.json.part ]' - "$top"
