# mutants_ptx.pl: makes the mistake of one line of mutants.list (standard input; see mutants_ptx.sh):
# in a copy of $HERE by links, tree/, or in bf16_sm_90.ptx, a copy of $PTX_FILE.
use strict;
use warnings;
chomp(my $line = <STDIN>);
my ($name, $file, $place, $old, $new, $kernel) = split / :: /, $line;
my $from = $file eq "ptx" ? $ENV{PTX_FILE} : "$ENV{HERE}/$file";
my @text = do { local @ARGV = $from; <> };
my ($first, $last) = (0, $#text);
if ($file eq "ptx") {
    ($first) = grep { $text[$_] =~ /\.entry \S*\Q$kernel\E/ } 0 .. $#text or die "no kernel $kernel\n";
    ($last) = grep { $text[$_] =~ /^\}/ } $first .. $#text;
}
my $which = $place =~ s/^\((first|last)\) // && $1 eq "last" ? -1 : 0;
my $found = (grep { index($text[$_], $place) >= 0 } $first .. $last)[$which];
die "no line with $place\n" if !defined $found;
$text[$found] =~ s/^(.*)(?<!\w)\Q$old\E(?!\w)/$1$new/s or die "no $old in $text[$found]";
if ($file ne "ptx") {
    mkdir "tree";
    symlink $_, "tree/" . s{.*/}{}r for glob("$ENV{HERE}/*.h $ENV{HERE}/*.c $ENV{HERE}/*.cu");
    for my $room (glob("$ENV{HERE}/tide/*")) {
        my $to = "tree/tide/" . $room =~ s{.*/}{}r;
        mkdir "tree/tide";
        mkdir $to;
        symlink $_, "$to/" . s{.*/}{}r for glob("$room/*");
    }
    unlink "tree/$file";
}
open(my $f, ">", $file eq "ptx" ? "bf16_sm_90.ptx" : "tree/$file") or die;
print $f @text;
