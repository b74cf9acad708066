package qo.spark;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, but for one thing: it sets permissions by itself. Hadoop starts the program chmod for
 * each file and each directory that it makes, unless its library of native code is installed; one small write of
 * Spark's makes seven of them.
 */
public class LocalFiles extends LocalFileSystem {

  public LocalFiles() {
    super(new Raw());
  }

  public static class Raw extends RawLocalFileSystem {

    /** The order is that of the bits, from the owner's right to read down to everybody's right to execute. */
    private static final PosixFilePermission[] RIGHTS = PosixFilePermission.values();

    public void setPermission(Path path, FsPermission permission) throws IOException {
      java.nio.file.Path file = pathToFile(path).toPath();
      if (permission.getStickyBit() || !file.getFileSystem().supportedFileAttributeViews().contains("posix")) {
        super.setPermission(path, permission); // Java has no words for these.
        return;
      }
      Set granted = EnumSet.noneOf(PosixFilePermission.class);
      for (int at = 0; at < RIGHTS.length; at++) {
        if ((permission.toShort() & (1 << (RIGHTS.length - 1 - at))) != 0) {
          granted.add(RIGHTS[at]);
        }
      }
      Files.setPosixFilePermissions(file, granted);
    }
  }
}
