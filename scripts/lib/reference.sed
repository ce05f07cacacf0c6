# Comments as the headers have them, in the forms that Doxygen reads. Lines keep their numbers behind the first declaration.
1s@^/\* @/** \\file\n * @
2,$ { /^#pragma once$/d }
s@^/\* @/** @
s@^\(  *[^ /*].*\)/\* \(.*\) \*/$@\1/**< \2 */@
/^}  *\/\/ namespace/!s@\([;,{}]\)\( *\)//\( [^/].*\)$@\1\2///<\3@
