# codegen.awk: are the hot loops vector code? Reads assembly for x86-64 or aarch64 that gcc or clang
# wrote with line numbers (-g1), and prints one line per complaint; nothing: all is well.
#
#     awk -v bits=256 -v widest=512 -f codegen.awk TABLE FILE.s
#
# bits: how wide the vectors of every hot loop have to be; widest: those of the product.
# TABLE: the functions that are looked at, see test_codegen.sh.
# With -v show=1, all their innermost loops are printed, too.
#
# A loop is natural: a jump back to a block through which everything in the loop is reached; it is
# innermost if no other is in it. It is vector code if it has twice as much packed arithmetic, in
# lanes, as scalar, and never both in one block: short loops and remainders are unrolled into the
# one around them, but a sum whose order is kept is scalar next to packed products. A scalar loop is
# a remainder, and right, if the function has packed arithmetic from one of its source lines; of
# a layer only its own lines count, not those of what is inlined in several of its loops.
# What a compiler has cut out of a function (.constprop, ._omp_fn) counts as the function; clang's
# .omp_outlined as the one that refers to it.

function family(name,   symbol) {
    sub(/\.(constprop|isra|part|cold|_omp_fn|lto_priv).*/, "", name)
    if (name !~ /^\./) sub(/\.omp_outlined.*/, "", name)
    if (match(name, /^_ZL?[0-9]+/)) {  # C++
        symbol = substr(name, RSTART, RLENGTH)
        gsub(/[^0-9]/, "", symbol)
        name = substr(name, RLENGTH + 1, symbol)
    }
    return name
}

function owner(name,   n) {  # whose function this is
    for (n = 0; n < 9 && name in caller; n++) name = caller[name]
    return family(name)
}

# --- what instructions do: packed (floating-point), whole (packed integers and logic), scalar ---

function classify_x86(op, args) {
    width = args ~ /%zmm/ ? 512 : args ~ /%ymm/ ? 256 : args ~ /%xmm/ ? 128 : 0
    if (op ~ /^call/) called = args ~ /^(fmaf?|expf?|tanhf?|logf?|sqrtf?|fmaxf?)(@|$)/
    if (width == 0) return
    if (op ~ /^v?(add|sub|mul|div|sqrt|min|max)s[sd]$/ || op ~ /^vfn?m(add|sub)[123]+s[sd]$/ ||
        op ~ /^v?cvt(u?si2s[sd]|s[sd]2s[sd])[lq]?$/) scalar = 1
    else if (op ~ /^vfn?m(add|sub)[123]+p[sd]$/) packed = fma = 1
    else if (op ~ /^v?(add|sub|mul|div|sqrt|min|max)p[sd]$/) packed = 1
    else if (op ~ /^v?p(add|sub|mul|s[lr][la]|min|max|cmp|ternlog|and|or|xor)/ ||
             op ~ /^v?p(ack|mov[sz]x|unpck|blend|erm|shuf)/ || op ~ /^v?cvt[a-z0-9]*2(p[sd]|dq)/ ||
             op ~ /^v?(cmp|andn?|or|xor|blend)[a-z_]*p[sd]$/) whole = 1
    if (args ~ /\(%r[sb]p/ && args !~ /\{1to/ && op !~ /s[sd]$/) spill = 1
}

function classify_arm(op, args) {
    width = args ~ /v[0-9]+\.(16b|8h|4s|2d)/ || args ~ /z[0-9]+\.[bhsd]/ ? 128 : 0
    if (op == "bl" || op == "b") called = args ~ /^(fmaf?|expf?|tanhf?|logf?|sqrtf?|fmaxf?)$/
    if (args ~ /^[sd][0-9]/ &&
        op ~ /^(fn?m?(add|sub|mul)|fdiv|fsqrt|f(max|min)(nm)?|[su]cvtf)$/) scalar = 1
    else if (width && op ~ /^(fml[as]|fn?ml[as]|fn?m(ad|sb))$/) packed = fma = 1
    else if (width && op ~ /^(fadd|fsub|fmul|fdivr?|fsqrt|f(max|min)(nm)?)$/) packed = 1
    else if (width && (op ~ /^([su]?add[lw]?|r?addhn|sub|mul|mla|[su]mull|cm[a-z]+|fcm[a-z]+)2?$/ ||
             op ~ /^([su]?shll?|[su](shr|sra|max|min)|r?shrn|ls[lr]|asr|xtn|[uz][zi]p[12])2?$/ ||
             op ~ /^(and|orr|eor|bi[tfc]|bsl|sel|uunpk(lo|hi)|[su]cvtf|fcvt[a-z0-9]+)$/)) whole = 1
    if ((args ~ /^q[0-9]/ || args ~ /^\{ ?v[0-9]/) && args ~ /\[(sp|x29)/) spill = 1
}

function classify(i) {
    packed = whole = scalar = fma = spill = called = 0
    if (arm) classify_arm(op_of[i], args_of[i])
    else classify_x86(op_of[i], args_of[i])
}

# --- a function: its blocks, their order, its innermost loops ---

function add_edge(u, v) {
    edge[u, ++edges[u]] = v
    before[v, ++preds[v]] = u
}

function finish_function(   i, b, h, k, n, inner, members) {
    if (count > 0 && (family(name) in needed || name ~ /^\./)) {
        split("", edge); split("", edges); split("", before); split("", preds)
        split("", first); split("", last); split("", block)
        blocks = 0
        for (i = 1; i <= count; i++) {
            if (i == 1 || i in starts || i - 1 in leaves) first[++blocks] = i
            block[i] = blocks
            last[blocks] = i
        }
        for (b = 1; b <= blocks; b++) {
            i = last[b]
            if (i in leaves && leaves[i] in at && at[leaves[i]] <= count)
                add_edge(b, block[at[leaves[i]]])
            if (!(i in stops) && b < blocks) add_edge(b, b + 1)
        }
        for (i = 1; i <= count; i++) {
            classify(i)
            if (packed || whole) packed_line[name, line_of[i]] = 1
        }
        find_loops()
        for (h in body_of) {
            inner = 1
            n = split(body_of[h], members, " ")
            for (k = 1; k <= n && inner; k++) inner = members[k] == h || !(members[k] in body_of)
            if (inner) add_up(members, n)
        }
    }
    count = 0
    split("", at); split("", starts); split("", leaves); split("", stops)
}

# Depth first from the entry: an edge to a block that is still open may close a loop.
function find_loops(   stack, chosen, state, top, u, v) {
    split("", body_of); split("", in_body)
    stack[top = 1] = 1
    state[1] = "open"
    while (top > 0) {
        u = stack[top]
        if (chosen[u] < edges[u]) {
            v = edge[u, ++chosen[u]]
            if (!(v in state)) { state[v] = "open"; stack[++top] = v }
            else if (state[v] == "open") add_loop(u, v)
        } else { state[u] = "done"; top-- }
    }
}

# The loop of an edge latch -> header: all from which the latch is reached other than through the
# header. If that includes the entry, it is none.
function add_loop(latch, header,   stack, seen, top, u, k, n, body, part) {
    seen[header] = 1
    if (latch != header) { stack[top = 1] = latch; seen[latch] = 1 }
    while (top > 0) {
        u = stack[top--]
        if (u == 1) return
        body = body " " u
        for (k = 1; k <= preds[u]; k++)
            if (!(before[u, k] in seen)) { seen[before[u, k]] = 1; stack[++top] = before[u, k] }
    }
    if (!(header in body_of)) body_of[header] = header
    n = split(body, part, " ")
    for (k = 1; k <= n; k++)
        if (part[k] != header && !((header, part[k]) in in_body)) {
            in_body[header, part[k]] = 1
            body_of[header] = body_of[header] " " part[k]
        }
}

function add_up(members, n,   k, i, l, lines, seen, packed_here, scalar_here) {
    l = ++loops
    loop_of[l] = name
    loop_bits[l] = loop_mixed[l] = 0
    for (k = 1; k <= n; k++) {
        packed_here = scalar_here = 0
        for (i = first[members[k]]; i <= last[members[k]]; i++) {
            classify(i)
            packed_here += packed
            scalar_here += scalar
            loop_packed[l] += packed
            loop_whole[l] += whole
            loop_scalar[l] += scalar
            loop_fma[l] += fma
            loop_spills[l] += spill
            loop_calls[l] += called
            if ((packed || whole) && width > loop_bits[l]) loop_bits[l] = width
            if (!(line_of[i] in seen)) { seen[line_of[i]] = 1; lines = lines " " line_of[i] }
        }
        if (packed_here) loop_mixed[l] += scalar_here
    }
    loop_lines[l] = lines
}

# --- reading ---

FNR == 1 { file++ }
file == 1 {
    if (/^[a-z]/) { needed[$1] = $2; kind[$1] = $3 }
    next
}
/^[ \t]*\.type[ \t]/ {
    symbol = $2
    sub(/,.*/, "", symbol)
    if (/[@%]function/) is_function[symbol] = 1
    next
}
/^[ \t]*\.file[ \t]+[0-9]+[ \t]/ {
    n = split($0, part, "\"")
    source[$2] = part[n - 1] ~ /\./ ? part[n - 1] : part[n - 3]
    sub(/.*\//, "", source[$2])
    next
}
/^[ \t]*\.loc[ \t]/ { line = $3 > 0 ? source[$2] ":" $3 : ""; next }
/^[A-Za-z_.][^ \t]*:/ {
    symbol = $1
    sub(/:.*/, "", symbol)
    if (symbol in is_function) { finish_function(); name = symbol; line = "" }
    at[symbol] = count + 1
    starts[count + 1] = 1
    next
}
/^[ \t]*[.#]/ || /^[ \t]*\/\// || /^[ \t]*$/ { next }
{
    count++
    op_of[count] = $1
    args = $0
    sub(/^[ \t]*[^ \t]+[ \t]*/, "", args)
    sub(/[ \t]*(#|\/\/).*/, "", args)
    args_of[count] = args
    line_of[count] = line
    if (args ~ /omp_outlined/ && match(args, /[A-Za-z0-9_]*\.omp_outlined[A-Za-z0-9_.]*/)) {
        symbol = substr(args, RSTART, RLENGTH)
        if (symbol != name) caller[symbol] = name
    }
    if (arm ? $1 ~ /^(b|b\..*|b[a-z][a-z]|cbn?z|tbn?z|br)$/ : $1 ~ /^j/) {
        symbol = args
        sub(/.*[, \t]/, "", symbol)
        leaves[count] = symbol
        if ($1 == "jmp" || $1 == "b" || $1 == "br") stops[count] = 1
    } else if ($1 ~ /^(retq?|ud2|brk)$/) {
        leaves[count] = ""
        stops[count] = 1
    }
}
END {
    finish_function()
    for (pair in packed_line) {
        split(pair, part, SUBSEP)
        has_packed[owner(part[1]), part[2]] = 1
    }
    for (l = 1; l <= loops; l++) judge(l, owner(loop_of[l]))
    for (f in needed)
        if (vectors[f] + 0 < needed[f])
            print f ": " vectors[f] + 0 " vector loops of " needed[f] \
                (narrow[f] ? ", " narrow[f] " narrow" : "")
}

function judge(l, f,   n, k, line, own, matched, is_vector) {
    if (!(f in needed)) return
    is_vector = loop_packed[l] + loop_whole[l] > 0 && \
        64 * loop_scalar[l] <= loop_bits[l] * loop_packed[l] && \
        loop_mixed[l] + loop_calls[l] == 0
    if (show)
        print "  " f ": " (is_vector ? "vector" : "scalar") ", " loop_bits[l] " bits, packed " \
            loop_packed[l] ", fused " loop_fma[l] ", integers and logic " loop_whole[l] \
            ", scalar " loop_scalar[l] ", mixed " loop_mixed[l] ", calls " loop_calls[l] \
            ", stack " loop_spills[l] ":" loop_lines[l]
    if (kind[f] ~ /product/ && is_vector && loop_packed[l] > 0) {
        if (loop_bits[l] < widest) print f ": " loop_bits[l] " bits, not " widest
        if (loop_spills[l]) print f ": sums are kept in memory"
        if (loop_fma[l] < loop_packed[l]) print f ": multiply-adds are not fused"
    }
    if (is_vector) {
        if (loop_bits[l] >= bits) vectors[f]++
        else narrow[f]++
        return
    }
    if ((loop_scalar[l] == 0 && loop_calls[l] == 0) || kind[f] ~ /tail/) return
    own = loop_lines[l] ~ / train_gpt2\.c:/
    n = split(loop_lines[l], line, " ")
    for (k = 1; k <= n; k++)
        if ((!own || line[k] ~ /^train_gpt2\.c:/) && (f, line[k]) in has_packed) matched = 1
    if (!matched) {
        for (k = 1; k <= n; k++) if (!own || line[k] ~ /^train_gpt2\.c:/) break
        print f ": scalar code at " line[k]
    }
}
