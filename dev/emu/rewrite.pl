#!/usr/bin/env perl
# rewrite.pl: turns what is not C++ in CUDA C++ into C++. Reads the preprocessor's output on stdin.
#
#   k<T><<<grid, block, shared, stream>>>(args)
#       -> emu::launcher("k<T>", threads, f => f(k<T>), call k<T>, emu::config(grid, ...))(args)
#   extern __shared__ T x[];
#       -> T *x = (T *)emu_dynamic_shared();
#   __shared__ T x[N], y;
#       -> static char tag; T (&x)[N] = *(T (*)[N])emu_shared(&tag, sizeof(T[N]), "x"); and so on
#   template <int N> __global__ void __launch_bounds__(N) k(...)
#       -> template <int N> constexpr int emu_bounds_k() { return N; } before it, used by launches
#
# Nothing else changes, and every line keeps its number, so that debuggers show the source.
use strict;
use warnings;

local $/;
my $code = <STDIN>;

# Literals are set aside, so that brackets in them do not count.
my @literal;
my $raw = qr/R"([^\s()\\]{0,16})\(.*?\)\g{-1}"/s;
my $string = qr/"(?:[^"\\\n]|\\.)*"/s;
my $char = qr/(?<![0-9A-Fa-f])'(?:[^'\\\n]|\\.)+'/s;  # not the ' in 1'000
$code =~ s/($raw|$string|$char)/push @literal, $1; "\x01$#literal\x02"/gse;
sub restore { my ($s) = @_; $s =~ s/\x01(\d+)\x02/$literal[$1]/g; return $s }

my $round = qr/(?<round>\((?:[^()]++|(?&round))*+\))/;

sub fail_at {
    my ($pos, $what) = @_;
    my ($file, $line) = ("?", 0);
    for (split /\n/, substr($code, 0, $pos), -1) {
        if (/^# (\d+) \x01(\d+)\x02/) { ($line, $file) = ($1 - 1, $literal[$2]) } else { $line++ }
    }
    die "emucc: $file line $line: $what\n";
}

# Positions of the closing bracket of each kind that matches the one at $i.
sub closing {
    my ($i) = @_;
    my $depth = 0;
    pos($code) = $i;
    while ($code =~ /([(\[{])|[)\]}]/g) {
        $depth += defined $1 ? 1 : -1;
        return pos($code) - 1 if $depth == 0;
    }
    fail_at($i, "unbalanced bracket");
}

# Launch bounds: a function beside each kernel that has them.
my %bounded;
while ($code =~ /\b__launch_bounds__\s*$round/g) {
    my ($begin, $end) = ($-[0], $+[0]);
    my $inside = substr($+{round}, 1, -1);
    my ($threads, $depth) = ("", 0);
    for my $c (split //, $inside) {
        $depth++ if $c =~ /[(\[{<]/;
        $depth-- if $c =~ /[)\]}>]/;
        last if $c eq "," && $depth == 0;
        $threads .= $c;
    }
    pos($code) = $end;
    my ($name) = $code =~ /\G[^;{}()]*?(\w+)\s*\(/g
        or fail_at($begin, "__launch_bounds__ without a kernel");
    my $at = 0;  # the declaration begins after what came before it; a regex would take seconds
    for my $c (";", "{", "}") {
        my $last = rindex($code, $c, $begin - 1);
        $at = $last + 1 if $last >= $at;
    }
    my $declaration = substr($code, $at, $begin - $at);
    $declaration =~ s/^#[^\n]*$//gm;
    $declaration =~ s/\b(?:static|inline|void|extern|__attribute__\s*$round)//g;
    my ($template) = $declaration =~ /(template\s*<.*>)/s;
    $template = defined $template ? $template : "";
    $template =~ s/\s+/ /g;
    my $helper = "$template static constexpr int emu_bounds_$name() { return $threads; } ";
    $helper =~ s/\n/ /g;
    # in front of the declaration, on the line where it begins
    pos($code) = $at;
    while ($at < $begin && $code =~ /\G(?:\s+|#[^\n]*\n)/gc) { $at = pos($code) }
    substr($code, $begin, $end - $begin) =~ s/[^\n]//g;
    substr($code, $at, 0) = $bounded{$name}++ ? "" : $helper;
    pos($code) = $at;
}

# Launches.
my $pos = 0;
while (($pos = index($code, "<<<", $pos)) >= 0) {
    # back over NAME or NAME<...>
    my $end = $pos;
    $end-- while substr($code, $end - 1, 1) =~ /\s/;
    my $begin = $end;
    if (substr($code, $begin - 1, 1) eq ">") {
        my $depth = 0;
        do {
            my $c = substr($code, --$begin, 1);
            $depth++ if $c =~ /[>)]/;
            $depth-- if $c =~ /[<(]/;
        } while ($depth > 0 && $begin > 0);
        $begin-- while substr($code, $begin - 1, 1) =~ /\s/;
    }
    my $name_end = $begin;
    $begin-- while $begin > 0 && substr($code, $begin - 1, 1) =~ /[\w:]/;
    my $name = substr($code, $begin, $name_end - $begin);
    if ($name !~ /^(?:::)?[A-Za-z_]/) { $pos += 3; next }
    my $kernel = substr($code, $begin, $end - $begin);

    # forward to >>> outside brackets, and over the arguments
    my $i = $pos + 3;
    until (substr($code, $i, 3) eq ">>>") {
        fail_at($pos, "launch of $kernel: no >>>") if $i >= length $code;
        $i = substr($code, $i, 1) =~ /[(\[{]/ ? closing($i) + 1 : $i + 1;
    }
    my $config = substr($code, $pos + 3, $i - $pos - 3);
    my $gap = substr($code, $end, $pos - $end);
    $i += 3;
    while (substr($code, $i, 1) =~ /\s/) { $gap .= substr($code, $i++, 1) }
    fail_at($pos, "launch of $kernel: no arguments in brackets") if substr($code, $i, 1) ne "(";
    $gap =~ s/[^\n]//g;

    (my $text = restore($kernel)) =~ s/\s+/ /g;
    $text =~ s/(["\\])/\\$1/g;
    push @literal, "\"$text\"";
    my $shown = "\x01$#literal\x02";
    (my $flat = $kernel) =~ s/\s+/ /g;
    my ($scope, $last) = $name =~ /^(.*?)(\w+)$/s;
    my $template = substr($flat, length $name);
    my $bounds = $bounded{$last} ? "${scope}emu_bounds_$last$template()" : 1024;
    my $new = "emu::launcher($shown, $bounds, "
        . "[=](auto emu_f) -> decltype(emu_f($flat)) { return emu_f($flat); }, "
        . "[=](auto... emu_a) { $kernel(emu_a...); }, emu::config($config))$gap";
    substr($code, $begin, $i - $begin) = $new;
    $pos = $begin + length $new;
}

# Shared memory.
my $align = qr/(?:alignas\s*$round\s*)*/;
$code =~ s{\bextern\s+__shared__\s+(?:alignas\s*$round\s*)*([^;\[\]]*?)(\w+)\s*\[\s*\]\s*;}
          {$2 *$3 = ($2 *)emu_dynamic_shared();}g;
my $tags = 0;
$code =~ s{\b__shared__\s+((?:alignas\s*$round\s*)*)([^;]*);}{
    my @declared;  # "T x[N]", "y"
    my ($current, $depth) = ("", 0);
    for my $c (split //, $3) {
        $depth++ if $c =~ /[(\[{<]/;
        $depth-- if $c =~ /[)\]}>]/;
        if ($c eq "," && $depth == 0) { push @declared, $current; $current = "" }
        else { $current .= $c }
    }
    my ($type, $result) = ("", "");
    for my $d (@declared, $current) {
        $d =~ /^(.*?)(\w+)\s*((?:\[.*\])?)\s*$/s or die "emucc: cannot read __shared__ $d\n";
        my ($t, $name, $size) = ($1, $2, $3);
        $type = $t if $type eq "";
        $tags++;
        push @literal, "\"$name\"";
        $result .= "static char emu_tag$tags; using emu_type$tags = $type$size; "
            . "emu_type$tags &$name = *(emu_type$tags *)emu_shared(&emu_tag$tags, "
            . "sizeof(emu_type$tags), \x01$#literal\x02);";
    }
    $result
}gse;

print restore($code);
