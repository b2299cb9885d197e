# mutants.pl: puts every mistake of a list (standard input, as in mutants.list) into the sources that
# lie here, each behind mutant(N); says which line of the list has no place there. With --check as its
# argument it only says so.
my $check = @ARGV && $ARGV[0] eq "--check";
@ARGV = ();
my (%was, %is);  # lines of files
sub lines { my $f = shift; $is{$f} = [@{$was{$f} = [do { local @ARGV = $f; <> }]}] if !$is{$f}; }
lines("tide/base/util.h");
my ($first) = grep { $is{"tide/base/util.h"}[$_] =~ /^#include/ } 0 .. 99;
$is{"tide/base/util.h"}[$first] .= '
#include <stdbool.h>
#include <stdlib.h>
static int mutant_chosen;
__attribute__((constructor)) static void mutant_choose(void) {
    const char *text = getenv("MUTANT");
    mutant_chosen = text == NULL ? 0 : atoi(text);
}
static inline bool mutant(int n) { return n == mutant_chosen; }
';
for (my $n = 1; my $line = <STDIN>; $n++) {
    next if $line =~ /^#| :: ptx :: /;  # no source
    chomp $line;
    my ($name, $file, $place, $old, $new) = split / :: /, $line;
    lines($file);
    my $which = $place =~ s/^\((first|last)\) // ? $1 : "";
    my @found = grep { index($was{$file}[$_], $place) >= 0 } 0 .. $#{$was{$file}};
    @found = $found[$which eq "last" ? -1 : 0] if $which && @found > 1;
    my $from = \($is{$file}[$found[0] // 0]);
    $from = \(my $alone = $was{$file}[$found[0] // 0]) if $name =~ /^ptx /;
    my $changes = @found != 1 ? 0
        : defined $old ? $$from =~ s/^(.*)(?<!\w)\Q$old\E(?!\w)/$1(mutant($n) ? $new : $old)/s
        : $$from =~ s/(?=\Q$place\E)/if (mutant($n)) {} else /;
    print "FAIL mutant $name: not in $file\n" if !$changes;
}
exit 0 if $check;
for (keys %is) { unlink; open(my $f, ">", $_) or die; print $f @{$is{$_}}; }
